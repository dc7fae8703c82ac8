"""The set-up cell: what it installs where `lessons_lib` is absent, and that a torch at hand stays."""

import ast
import os
import re
import shutil
import subprocess
import sys
import venv
from importlib.metadata import distribution
from pathlib import Path

import pytest
from support.notebooks import notebook

import lessons_lib
from lessons_lib.course.lessons import find
from lessons_lib.paths import ROOT
from tools import store

ADDRESS = "https://github.com/someone/lessons"


def test_the_cell_does_nothing_where_lessons_lib_is_there(monkeypatch):
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: pytest.fail("installed something"))
    exec(store.setup_cell(""), {})
    exec(store.setup_cell(ADDRESS), {})


def test_the_cell_sets_how_long_threads_spin_unless_the_user_has(monkeypatch):
    for given, expected in ((None, "1000"), ("7", "7")):
        monkeypatch.setattr(os, "environ", {} if given is None else {"GOMP_SPINCOUNT": given})
        exec(store.setup_cell(""), {})
        assert os.environ["GOMP_SPINCOUNT"] == expected


def test_first_cell_makefile_and_package_let_threads_spin_equally_long():
    texts = [store.SETUP, (ROOT / "Makefile").read_text(), Path(lessons_lib.__file__).read_text()]
    assert [re.findall(r"GOMP_SPINCOUNT\W+(\d+)", text) for text in texts] == [["1000"]] * 3


def test_the_package_sets_it_before_torch_reads_it():
    code = "import os, sys; old = os.environ.setdefault; os.environ.setdefault = lambda *pair: (old(*pair), "
    code += "print('torch' in sys.modules, os.environ[pair[0]], flush=True), os._exit(0)); import lessons_lib"
    for given, expected in (({}, "False 1000"), ({"GOMP_SPINCOUNT": "7"}, "False 7")):
        others = {name: value for name, value in os.environ.items() if name != "GOMP_SPINCOUNT"}
        done = subprocess.run(
            [sys.executable, "-c", code], env=others | given, cwd=ROOT, capture_output=True, text=True
        )
        assert done.stdout.strip() == expected, done.stderr


def test_an_address_on_github_gives_a_link_and_others_none():
    link = store.link(ADDRESS + ".git", "02_kv_cache")
    assert link.endswith("github/someone/lessons/blob/main/notebooks/02_kv_cache.ipynb)")
    assert store.link("", "02_kv_cache") == store.link("https://example.org/x/y", "02_kv_cache") == ""


def test_putting_it_twice_gives_one_set_up_cell_after_the_title():
    sound_lesson = notebook("print(tokens)")
    before = [cell.source for cell in sound_lesson.cells]
    assert sound_lesson.cells[1].execution_count == 1
    store.put_setup(sound_lesson, "00_a_lesson", ADDRESS)
    store.put_setup(sound_lesson, "00_a_lesson", ADDRESS)
    now = [cell.source for cell in sound_lesson.cells]
    assert now == [before[0], store.link(ADDRESS, "00_a_lesson"), store.setup_cell(ADDRESS), *before[2:]]
    store.put_setup(sound_lesson, "00_a_lesson", "")
    assert sound_lesson.cells[1].execution_count == 1
    assert [cell.source for cell in sound_lesson.cells] == before


def test_the_address_is_the_one_in_pyproject(tmp_path):
    file = tmp_path / "pyproject.toml"
    file.write_text('[project]\nname = "x"\n')
    assert store.address(tmp_path) == ""
    file.write_text(f'[project]\nname = "x"\n[project.urls]\nRepository = "{ADDRESS}"\n')
    assert store.address(tmp_path) == ADDRESS


@pytest.fixture(scope="module")
def repository(tmp_path_factory) -> Path:
    """A git repository with what the working tree would install."""
    folder = tmp_path_factory.mktemp("repository")
    for name in ("pyproject.toml", "README.md", "LICENSE", "NOTICE"):
        shutil.copy(ROOT / name, folder)
    left_out = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "lessons_lib", folder / "lessons_lib", symlinks=True, ignore=left_out)
    shutil.copytree(ROOT / "bench" / "results", folder / "bench" / "results")
    who = ["-c", "user.name=Test", "-c", "user.email=test@example.org", "-c", "commit.gpgsign=false"]
    for command in (["init", "-q"], ["add", "-A"], [*who, "commit", "-q", "-m", "A clone"]):
        subprocess.run(["git", *command], cwd=folder, check=True)
    return folder


@pytest.fixture(scope="module")
def environment(tmp_path_factory) -> Path:
    """Python of a virtual environment with nothing but pip, setuptools, and a torch of its own kind."""
    folder = tmp_path_factory.mktemp("environment") / "empty"
    venv.create(folder, system_site_packages=True, with_pip=True, symlinks=True)
    python = folder / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    ask = [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    packages = Path(subprocess.run(ask, capture_output=True, text=True, check=True).stdout.strip())
    here = distribution("setuptools")
    for top in {Path(str(file)).parts[0] for file in here.files} - {".."}:
        source = Path(str(here.locate_file(top)))
        shutil.copytree(source, packages / top, dirs_exist_ok=True) if source.is_dir() else shutil.copy(
            source, packages
        )
    (packages / "torch").mkdir()
    (packages / "torch" / "__init__.py").write_text("kept = True\n")
    (packages / "torch-2.9.9+cu999.dist-info").mkdir()
    (packages / "torch-2.9.9+cu999.dist-info" / "METADATA").write_text("Name: torch\nVersion: 2.9.9+cu999\n")
    return python


@pytest.fixture
def empty(environment) -> Path:
    """The environment, emptied again after each test."""
    yield environment
    subprocess.run([environment, "-m", "pip", "uninstall", "-q", "-y", "lessons_lib"], check=True, capture_output=True)


def run_cell(python: Path, source: str, folder: Path, then: str) -> subprocess.CompletedProcess:
    """Run the cell as a lone process without network, dependencies or build isolation, then more code in it."""
    folder.mkdir(exist_ok=True)
    # pip reads the variable for a no-option as the value of the option without "no"
    settings = {"PIP_NO_DEPS": "1", "PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0", "HOME": str(folder)}
    code = f"{source}\n{then}"
    path = {"PATH": f"{python.parent}:/usr/bin:/bin:{Path(shutil.which('git')).parent}"}
    return subprocess.run([python, "-c", code], cwd=folder, env={**settings, **path}, capture_output=True, text=True)


CHECK = """import torch  # the environment's own kind, with which the package cannot be imported
print(metadata.version("lessons_lib"), util.find_spec("lessons_lib").origin, torch.kept)"""


def test_in_an_empty_environment_the_cell_installs_from_the_address(empty, repository, tmp_path):
    address = repository.as_uri().replace("file://", "file://localhost")  # pip wants a host beside a name
    done = run_cell(empty, store.setup_cell(address), tmp_path / "elsewhere", CHECK)
    assert done.returncode == 0, done.stderr
    version, file, kept = done.stdout.split()
    assert Path(file).is_relative_to(empty.parent.parent) and kept == "True"
    for name in ("course", "models", "measure"):
        assert (Path(file).parent / name / "__init__.py").exists()
    recorded = Path(file).parent / "data" / "results"
    assert {path.name for path in recorded.iterdir()} == {path.name for path in (ROOT / "bench" / "results").iterdir()}


def test_in_a_checkout_the_cell_installs_the_checkout(empty, repository):
    notebooks = repository / "notebooks"
    done = run_cell(empty, store.setup_cell(""), notebooks, CHECK)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.split()[1]).is_relative_to(repository)


def test_without_an_address_the_cell_says_what_to_do(empty, tmp_path):
    done = run_cell(empty, store.setup_cell(""), tmp_path / "elsewhere", "")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("lessons_lib is missing: clone the course and open") and done.stdout.count("\n") == 1


def test_an_installed_torch_is_named_to_pip_so_that_it_stays(monkeypatch):
    import importlib.util

    seen = []
    find = importlib.util.find_spec
    monkeypatch.setattr(subprocess, "run", lambda command, check: seen.append(command))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "lessons_lib" else find(name))
    monkeypatch.chdir("/")
    exec(store.setup_cell(ADDRESS), {})
    assert seen[0][:4] == [sys.executable, "-m", "pip", "install"]
    assert seen[0][-2:] == [f"lessons_lib[lessons] @ git+{ADDRESS}", f"torch=={distribution('torch').version}"]


NOT_ON_COLAB = "latex2mathml papermill nbval hypothesis dask distributed ruff vulture sphinx furo playwright".split()


def test_lone_lessons_import_nothing_that_only_the_extras_bring():
    code = [f"import sys; sys.modules.update(dict.fromkeys({NOT_ON_COLAB}))"]
    for cell in (cell for lesson in find() for cell in lesson.read().cells if cell.cell_type == "code"):
        nodes = [node for node in ast.walk(ast.parse(cell.source)) if isinstance(node, ast.Import | ast.ImportFrom)]
        code += [line for line in map(ast.unparse, nodes) if "lessons_lib" in line]
    done = subprocess.run([sys.executable, "-c", "\n".join(code)], capture_output=True, text=True)
    assert len(code) > 100 and done.returncode == 0, done.stderr
