"""The first stage of every command: the environment made, changed, interrupted and made again."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lessons_lib.course import bootstrap
from lessons_lib.course.bootstrap import SetupError

PINS = "torch==2.13.0\nnumpy==2.4.6\n"


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A folder that looks like a clone, and no active environment."""
    (tmp_path / "pyproject.toml").write_text('[project]\nrequires-python = ">=3.11.5"\n')
    (tmp_path / "constraints.txt").write_text(PINS)
    monkeypatch.setattr(sys, "prefix", sys.base_prefix)
    return tmp_path


@pytest.fixture
def commands(checkout, monkeypatch):
    """The commands that would have run, each as one text with the clone's folder as `.`."""
    ran = []

    def pretend(name, command):
        ran.append(" ".join(map(str, command)).replace(str(checkout), "."))
        if "venv" in ran[-1].split():
            make_python(checkout / ".venv")

    monkeypatch.setattr(bootstrap, "stage", pretend)
    monkeypatch.setattr(bootstrap, "has_pip", lambda folder: bootstrap.python_of(folder).exists())
    monkeypatch.setattr(bootstrap, "installed_torch", lambda python: "2.13.0+cpu")
    return ran


def make_python(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    python = bootstrap.python_of(folder)
    python.parent.mkdir(exist_ok=True)
    python.touch()
    return python


def test_without_an_environment_one_is_made_and_torch_comes_first(checkout, commands):
    python, installed = bootstrap.ensure(checkout, {})
    assert installed and python == bootstrap.python_of(checkout / ".venv")
    made, torch, everything = commands
    assert made.endswith("-m venv --clear ./.venv")
    assert torch.endswith("torch==2.13.0 -c ./constraints.txt")
    assert everything.endswith("-c ./.venv/lessons_lib_constraints.txt -e .[lessons,test,bench,sweep,site]")
    assert (checkout / ".venv/lessons_lib_constraints.txt").read_text() == "torch==2.13.0+cpu\nnumpy==2.4.6"


def test_a_second_call_installs_nothing(checkout, commands):
    bootstrap.ensure(checkout, {})
    commands.clear()
    assert bootstrap.ensure(checkout, {})[1] is False
    assert commands == []


@pytest.mark.parametrize("name", ["pyproject.toml", "constraints.txt"])
def test_changed_pins_are_installed_into_the_environment_that_is_there(checkout, commands, name):
    bootstrap.ensure(checkout, {})
    commands.clear()
    (checkout / name).write_text((checkout / name).read_text() + "# changed\n")
    assert bootstrap.ensure(checkout, {})[1] is True
    assert not any("venv --clear" in command for command in commands)


def test_an_interrupted_install_starts_again(checkout, commands, monkeypatch):
    def fail(folder, root, environ):
        raise SetupError("no network")

    with monkeypatch.context() as patch:
        patch.setattr(bootstrap, "install", fail)
        with pytest.raises(SetupError):
            bootstrap.ensure(checkout, {})
    assert bootstrap.ensure(checkout, {})[1] is True


def test_an_interrupted_change_leaves_no_stamp_of_the_state_before(checkout, commands, monkeypatch):
    bootstrap.ensure(checkout, {})

    def fail(name, command):
        raise SetupError("no network")

    monkeypatch.setattr(bootstrap, "stage", fail)
    with pytest.raises(SetupError):
        bootstrap.ensure(checkout, {"TORCH_SPEC": "torch==2.12.1"})
    assert not bootstrap.is_current(checkout / ".venv", checkout, {})


def test_another_build_of_torch_replaces_the_one_that_is_there_and_is_remembered(checkout, commands):
    choice = {"TORCH_INDEX": "https://example.org/cpu"}
    bootstrap.ensure(checkout, {})
    commands.clear()
    bootstrap.ensure(checkout, choice)
    assert commands[0].endswith("pip uninstall --yes torch")
    assert commands[1].endswith("torch==2.13.0 --index-url https://example.org/cpu")
    commands.clear()
    assert bootstrap.ensure(checkout, choice)[1] is False and bootstrap.ensure(checkout, {})[1] is False
    (checkout / "constraints.txt").write_text(PINS + "six==1.17.0\n")
    bootstrap.ensure(checkout, {})
    assert len(commands) == 1 and "-e .[" in commands[0]


@pytest.mark.parametrize("variable", ["VIRTUAL_ENV", "CONDA_PREFIX"])
def test_an_active_environment_is_used(checkout, commands, variable):
    python = make_python(checkout / "mine")
    assert bootstrap.ensure(checkout, {variable: str(checkout / "mine")}) == (python, True)
    assert not (checkout / ".venv").exists()


def test_condas_base_is_not_an_environment_to_install_into(checkout, commands):
    make_python(checkout / "mine")
    bootstrap.ensure(checkout, {"CONDA_PREFIX": str(checkout / "mine"), "CONDA_DEFAULT_ENV": "base"})
    assert (checkout / ".venv").exists()


def test_an_old_python_is_told_which_one_is_needed(checkout, monkeypatch):
    monkeypatch.setattr(sys, "version_info", (3, 10, 4, "final", 0))
    with pytest.raises(SetupError, match=r"needs Python 3\.11\.5 or newer.*PYTHON="):
        bootstrap.ensure(checkout, {})


def test_a_failed_environment_is_removed_again(checkout, monkeypatch):
    def half(name, command):
        (checkout / ".venv").mkdir()
        raise SetupError("no ensurepip")

    monkeypatch.setattr(bootstrap, "stage", half)
    with pytest.raises(SetupError, match="python3-venv"):
        bootstrap.ensure(checkout, {})
    assert not (checkout / ".venv").exists()


def test_outside_a_clone_it_says_so(tmp_path):
    with pytest.raises(SetupError, match="clone"):
        bootstrap.ensure(tmp_path, {})


def test_a_failing_stage_shows_what_was_said(capsys):
    with pytest.raises(SetupError, match="the disk is full"):
        bootstrap.stage("name", [sys.executable, "-c", "import sys; sys.exit('the disk is full')"])
    assert capsys.readouterr().out.startswith("  name ")


def test_the_first_stage_needs_the_standard_library_alone():
    code = "import sys, json, lessons_lib.__main__; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.insert(0, {str(bootstrap.ROOT)!r}); {code}"],
        capture_output=True, text=True, check=True, env={**os.environ},
    )  # fmt: skip
    top = {name.partition(".")[0] for name in json.loads(done.stdout)}
    assert top <= {*sys.stdlib_module_names, "lessons_lib", "_frozen_importlib", "_frozen_importlib_external"} | {
        name for name in top if name.startswith("_")
    }


def test_the_running_environment_is_recognised_by_its_folder(checkout, monkeypatch):
    python = make_python(checkout / "mine")
    assert not bootstrap.is_running(python)
    monkeypatch.setattr(sys, "prefix", str(checkout / "mine"))
    assert bootstrap.is_running(python)


def test_what_one_command_needs_is_installed_once_and_again_after_a_change(checkout, commands, monkeypatch):
    monkeypatch.setattr(sys, "prefix", str(checkout))
    for _ in range(2):
        bootstrap.add("browser", checkout)
    (call,) = commands
    assert call.endswith("-c ./lessons_lib_constraints.txt -e .[browser]")
    (checkout / "constraints.txt").write_text(PINS + "playwright==1.0.0\n")
    bootstrap.add("browser", checkout)
    assert len(commands) == 2
