"""What is installed: pyproject, pins and conda's environment agree, and are all that the code imports."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterable
from importlib.metadata import EntryPoint, PackageNotFoundError, distribution, packages_distributions
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

import lessons_lib
from lessons_lib.cli import main
from lessons_lib.course.lessons import find
from lessons_lib.paths import ROOT
from tools import readme

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PINS = [Requirement(line) for line in (ROOT / "constraints.txt").read_text().splitlines()]
PINNED = {canonicalize_name(pin.name): str(pin.specifier).removeprefix("==") for pin in PINS}
EXTRA = PROJECT["optional-dependencies"]
CORE = [Requirement(text) for text in PROJECT["dependencies"]]
OF_EXTRAS = [Requirement(text) for texts in EXTRA.values() for text in texts if not text.startswith("lessons_lib[")]
REQUIRED = CORE + OF_EXTRAS
CONDA = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
OLDEST = PROJECT["requires-python"].removeprefix(">=")


@pytest.mark.parametrize("required", REQUIRED, ids=str)
def test_every_requirement_has_a_pin_within_its_bounds(required):
    assert required.specifier.contains(PINNED[canonicalize_name(required.name)])


def test_pins_are_exact_unique_and_of_no_build_and_torch_is_first():
    assert PINS[0].name == "torch" and len(PINNED) == len(PINS)
    assert all(re.fullmatch(r"==[\w.]+", str(pin.specifier)) for pin in PINS)


def test_pins_cover_what_the_requirements_require_in_turn():
    found = filter(None, map(installed, PINNED))
    needed = [Requirement(text) for package in found for text in package.requires or []]
    missing = {r.name for r in needed if (not r.marker or r.marker.evaluate({"extra": ""})) and in_reach(r)}
    assert missing == set()


def in_reach(required: Requirement) -> bool:
    """Whether a requirement is unpinned and belongs to every machine: the CUDA build of torch brings its own."""
    name = canonicalize_name(required.name)
    return name not in PINNED and not name.startswith(("nvidia-", "cuda-", "triton"))


def test_condas_environment_says_the_same():
    pip = next(entry["pip"] for entry in CONDA if isinstance(entry, dict))
    assert pip == [str(PINS[0]), "-c constraints.txt", "-e .[lessons]"]
    python = next(str(entry) for entry in CONDA if str(entry).startswith("python="))
    assert SpecifierSet(PROJECT["requires-python"]).contains(python.removeprefix("python="))


@pytest.mark.parametrize("python", [OLDEST, "3.12", "3.13"])  # the newest on which the tests were run
def test_all_pins_support_the_pythons_that_we_promise(python):
    refusing = {
        name: distribution(name).metadata["Requires-Python"]
        for name in PINNED
        # get: importlib_metadata, which myst-nb imports, takes the finding over, and raises for what is not there
        if (found := installed(name)) and not SpecifierSet(found.metadata.get("Requires-Python", "")).contains(python)
    }
    assert refusing == {}


def installed(name: str):
    try:
        return distribution(name)
    except PackageNotFoundError:
        return None


def imported(paths: Iterable[Path]) -> set[str]:
    """Top-level names that Python files import."""
    names = set()
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names |= {alias.name.partition(".")[0] for alias in node.names}
            if isinstance(node, ast.ImportFrom) and not node.level:
                names.add(node.module.partition(".")[0])
    return names - set(sys.stdlib_module_names) - {"lessons_lib"}


PROVIDERS = packages_distributions() | {"llama_cpp": ["llama-cpp-python"], "torchao": ["torchao"]}  # may be missing


def provided(names: set[str]) -> set[str]:
    """The packages that provide these names."""
    return {canonicalize_name(provider) for name in names for provider in PROVIDERS.get(name, [])}


def missing(names: set[str], required: list[Requirement]) -> set[str]:
    """The names that none of the required packages provides."""
    enough = {canonicalize_name(r.name) for r in required}
    return {name for name in names if not provided({name}) & enough}


def test_whatever_the_library_imports_is_required():
    files = [path for folder in ("lessons_lib", "tools", "docs") for path in (ROOT / folder).rglob("*.py")]
    assert missing(imported(files) - {"tools", "bench"}, REQUIRED) == set()


FOR_LESSONS = {"course"}  # what needs the extra `lessons`
OPTIONAL = {"anyio", "llama_cpp", "openai", "torchao"}  # without them a sentence says what to install
OPTIONAL |= {"fastapi", "jinja2", "prometheus_client", "pydantic", "uvicorn"}  # the same, for the server


def test_all_but_what_shows_and_runs_lessons_needs_no_extra_and_every_requirement_is_used():
    library = ROOT / "lessons_lib"
    core = imported(path for path in library.rglob("*.py") if path.relative_to(library).parts[0] not in FOR_LESSONS)
    assert missing(core, CORE) <= OPTIONAL
    assert {canonicalize_name(r.name) for r in CORE} - provided(core) == set()


def test_the_console_script_is_there():
    assert EntryPoint("lessons", PROJECT["scripts"]["lessons"], "console_scripts").load() is main


def test_every_package_folder_is_packed():
    folders = {path.parent for path in (ROOT / "lessons_lib").rglob("*.py")}
    assert {folder for folder in folders if not (folder / "__init__.py").exists()} == set()


def test_the_package_says_that_it_has_types_and_the_citation_its_version():
    assert (ROOT / "lessons_lib" / "py.typed").exists()
    packed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["lessons_lib"]
    assert "py.typed" in packed
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert (cited["version"], cited["license"]) == (lessons_lib.__version__, PROJECT["license"])
    assert f"\n## {lessons_lib.__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_continuous_integration_calls_the_makefiles_own_commands():
    (workflow,) = (ROOT / ".github" / "workflows").iterdir()
    jobs = yaml.safe_load(workflow.read_text(encoding="utf-8"))["jobs"].values()
    calls = [step["run"] for job in jobs for step in job["steps"] if "run" in step]
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M)
    assert calls and {call.removeprefix("make ") for call in calls} - {*targets} == {".ci/run"}


def test_readmes_tables_are_those_of_the_stored_lessons_and_claims():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert readme.filled(text, find()) == text, "`make bench` or `make lessons` writes them"


def test_the_lines_of_readme_and_of_serving_run_on_another_model(tmp_path, capsys):
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    from lessons_lib.models import tiny

    (code,), (engine, *_servers) = (  # test_server.py has those of servers
        re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(encoding="utf-8"), re.S)
        for name in ("README.md", "docs/serving.md")
    )
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(96)} | {"<unk>": 96}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tiny(context=512).save_pretrained(tmp_path)
    written = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>", eos_token="w0")
    written.chat_template = "{{ messages[0]['content'] }}"
    written.save_pretrained(tmp_path)
    known = {}
    exec(compile(code.replace("path/to/your/model", tmp_path.as_posix()), "README.md", "exec"), known)
    assert len([line for line in code.splitlines() if line.strip()]) <= 10
    said = capsys.readouterr().out
    assert all(name in said for name in ("passes", "plain", "prompt lookup", "lookahead"))
    plain, *others = known["comparison"].rows
    assert all(row.same == (True,) and row.passes <= plain.passes for row in others)
    exec(compile(engine.replace("smollm2-135m", tmp_path.as_posix()), "serving.md", "exec"), known)
    assert capsys.readouterr().out.splitlines() == [known["engine"].output(one).text for one in known["requests"]]


def test_nothing_names_a_package_index_or_a_machine():
    names = ("pyproject.toml", "constraints.txt", "environment.yml", "Makefile", "CITATION.cff", ".ci/run")
    files = [*(ROOT / name for name in names), *ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
    text = "".join(file.read_text(encoding="utf-8") for file in files)
    assert re.findall(r"pypi\.|download\.pytorch|--extra-index|/home/|/root/|/tmp/", text) == []
