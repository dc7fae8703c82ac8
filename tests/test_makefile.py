"""What make does to make the environment: in a copy on a path with a space, with Pythons that only note their calls."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from lessons_lib.paths import ROOT

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="make is not at hand on Windows")
# notes each call and the settings that could lead it astray; `-m venv` makes an environment of itself
PYTHON = """#!/bin/sh
test "$*" != "-c import pip" || exec test -f .venv/bin/pip
echo "$(basename "$0"): $* [$VIRTUAL_ENV$PYTHONPATH$PIP_TARGET]" >> "$CALLS"
case "$*" in
  "-m venv --clear .venv")
    rm -rf .venv; mkdir -p .venv/bin; cp "$0" .venv/bin/python; cp "$0" .venv/bin/pip
    echo "command = python -m venv --clear $(pwd)/.venv" > .venv/pyvenv.cfg;;
  *"version('torch')"*) echo torch==9.9.9+mine;;
esac
case "$*" in *"$FAILS"*) exit 1;; esac
"""


class Clone:
    """A clone without its code. make(...) -> what it asked the Pythons for; said: what it printed."""

    def __init__(self, folder: Path):
        self.folder, self.said = folder, ""
        folder.mkdir()
        for name in ("Makefile", "pyproject.toml", "constraints.txt"):
            shutil.copy(ROOT / name, folder)
        (folder / "fake").write_text(PYTHON)
        (folder / "fake").chmod(0o755)

    def make(self, *asked: str, fails: str = "nothing", status: int = 0, **settings: str) -> list[str]:
        own = re.findall(r"\$\((\w+)\)", (ROOT / "Makefile").read_text())  # make may run this test, and hands these on
        alone = {name: value for name, value in os.environ.items() if name not in own and not name.startswith("MAKE")}
        calls = self.folder / "calls"
        calls.write_text("")
        environ = alone | {"CALLS": str(calls), "FAILS": fails} | settings
        done = subprocess.run(
            ["make", "PYTHON=./fake", *asked], cwd=self.folder, env=environ, capture_output=True, text=True
        )
        self.said = done.stdout + done.stderr
        assert bool(done.returncode) == bool(status), self.said
        return calls.read_text().splitlines()

    def change(self, name: str, old: str, new: str) -> None:
        """Change a file, a minute after all else."""
        text = (self.folder / name).read_text()
        assert old in text
        for file in self.folder.rglob("*"):
            os.utime(file, ns=(0, file.stat().st_mtime_ns - 60 * 10**9))
        (self.folder / name).write_text(text.replace(old, new))


@pytest.fixture
def clone(tmp_path) -> Clone:
    return Clone(tmp_path / "a clone")


def installs(calls: list[str]) -> list[str]:
    """What pip was asked to install, without its options."""
    found = [re.search(r"-m pip install -qq --disable-pip-version-check (.*) \[", call) for call in calls]
    return [match[1] for match in found if match]


PIN = (ROOT / "constraints.txt").read_text().split()[0]
EVERYTHING = [f"{PIN} -c constraints.txt", "-c .venv/constraints.txt -e .[lessons]"]


def test_the_first_call_makes_an_environment_of_its_own_and_the_second_only_runs(clone, tmp_path):
    active = {"VIRTUAL_ENV": "/mine", "PYTHONPATH": "/mine/lib", "PIP_TARGET": "/mine/site"}
    first = clone.make("run", "LESSONS=00", **active)
    assert first[1] == "fake: -m venv --clear .venv []" and installs(first) == EVERYTHING
    assert all(call.startswith("python: ") and call.endswith("[]") for call in first[2:])
    assert clone.make("run", "LESSONS=00", **active) == [first[-1]] == ["python: -m lessons_lib run 00 []"]


def test_what_is_installed_is_held_to_the_torch_that_is_there(clone):
    clone.make("run")
    pins = (clone.folder / ".venv" / "constraints.txt").read_text().split()
    assert pins == ["torch==9.9.9+mine", *(ROOT / "constraints.txt").read_text().split()[1:]]


def test_a_changed_pin_or_requirement_installs_again(clone):
    clone.make("run")
    clone.change("pyproject.toml", "papermill>=2.6", "papermill>=2.7")
    assert installs(clone.make("run")) == EVERYTHING[1:]
    clone.change("constraints.txt", PIN, "torch==99.0")
    assert installs(clone.make("run")) == ["torch==99.0 -c constraints.txt", EVERYTHING[1]]
    assert installs(clone.make("run")) == []


def test_another_torch_is_installed_once_and_stays(clone):
    clone.make("run")
    choice = {"TORCH_SPEC": "torch<99", "TORCH_INDEX": "https://example.org/a b"}
    asked = "torch<99 --index-url https://example.org/a b"
    other = [f"--force-reinstall --no-deps {asked}", asked, EVERYTHING[1]]
    assert installs(clone.make("run", **choice)) == other
    assert installs(clone.make("run", **choice)) == installs(clone.make("run")) == []
    clone.change("constraints.txt", PIN, "torch==99.0")
    assert installs(clone.make("run")) == other[1:]  # which pip finds satisfied
    assert installs(clone.make("run", TORCH_INDEX="https://b"))[1] == "torch==99.0 --index-url https://b"


def test_a_choice_that_failed_is_not_remembered(clone):
    clone.make("run")
    clone.make("run", TORCH_SPEC="torch==0", fails="torch==0", status=2)
    assert installs(clone.make("run")) == EVERYTHING  # what the failed one may have broken is put back


@pytest.mark.parametrize("name", ["bin/python", "bin/pip", "pyvenv.cfg"])
def test_a_half_made_environment_is_made_again(clone, name):
    clone.make("run")
    (clone.folder / ".venv" / name).unlink()
    assert installs(clone.make("run")) == EVERYTHING


def test_an_environment_that_another_program_made_is_left_alone(clone):
    (clone.folder / ".venv" / "bin").mkdir(parents=True)
    (clone.folder / ".venv" / "pyvenv.cfg").write_text("home = /usr/bin\nuv = 0.8\n")
    assert clone.make("run", status=2) == [] and "Another program made .venv" in clone.said


def test_in_a_folder_that_was_moved_the_environment_is_made_again(clone):
    clone.make("run")
    clone.folder = clone.folder.rename(clone.folder.parent / "elsewhere")
    assert installs(clone.make("run")) == EVERYTHING


def test_without_venv_make_says_what_debian_lacks_and_leaves_nothing(clone):
    clone.make("run", fails="-m venv", status=2)
    assert "python3-venv" in clone.said and not (clone.folder / ".venv").exists()


def test_an_old_python_is_told_how_to_name_another(clone):
    oldest = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"].removeprefix(">=")
    before = ", ".join(oldest.split(".")[:-1])
    (clone.folder / "fake").write_text(
        f"#!/bin/sh\n[ $1 = -c ] && exec '{sys.executable}' -c \"import sys; "
        f"sys.version_info, sys.version = ({before}, 0), 'old'; $2\"\ntouch .venv\n"
    )
    clone.make("run", status=2)
    assert f"need Python {oldest} or newer" in clone.said and "this is old: name another" in clone.said
    assert "PYTHON=python3.12" in clone.said and not (clone.folder / ".venv").exists()


EXTRA = {"sweep": "sweep", "site": "site", "test-browser": "browser", "mutation": "mutation"}
EXTRA |= dict.fromkeys(["run", "lab", "probe", "bench", "lessons", "figures"], "lessons")
EXTRA |= dict.fromkeys(["test", "test-quick", "test-deep", "lint"], "test")


@pytest.mark.parametrize("target", EXTRA)
def test_each_target_installs_the_extra_that_it_needs(clone, target):
    assert installs(clone.make(target))[-1].endswith(f"-e .[{EXTRA[target]}]")


def test_the_peers_are_all_extras_that_no_other_target_asks_for(clone):
    extras = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    asked = re.findall(r"-e \.\[(\w+)]", "\n".join(clone.make("peers")))
    assert set(asked) == extras - {*EXTRA.values(), "serve"}  # `lessons serve` names its extra itself


def test_clean_and_help_need_no_python(clone):
    for name in ("build", "lessons_lib/course/__pycache__", "tools", "tests", "bench", "notebooks/.ipynb_checkpoints"):
        (clone.folder / name).mkdir(parents=True)
    assert clone.make("clean") == clone.make() == []
    assert {path.name for path in clone.folder.rglob("*") if path.is_dir()} == {
        "lessons_lib", "course", "tools", "tests", "bench", "notebooks",
    }  # fmt: skip
    said = set(re.findall(r"^([\w-]+) {2,}\S", clone.said, re.M))
    assert said == {*EXTRA, "peers", "clean"}


@pytest.mark.parametrize(
    "line, said",
    [
        ("run LESSONS='01 02' MODEL=m PARAMS='a=1 b=2'", "lessons_lib run 01 02 --model m --params a=1 b=2"),
        ("test LESSONS='00 01'", "lessons_lib test 00 01"),
        (
            "sweep LESSONS=06 GRID='gamma=2,4 seed=0,1' DTYPE=fp32 WORKERS=2 SCHEDULER=tcp://one:8786",
            "lessons_lib sweep 06 --dtype fp32 --grid gamma=2,4 seed=0,1 --workers 2 --scheduler-address tcp://one:8786",
        ),
        ("bench QUICK=1 CLAIMS=cache", "lessons_lib bench cache --quick"),
        ("lessons LESSONS=02", "tools.readme"),
        ("test-browser LESSONS='02 06' FULL=1", "pytest -v tests/browser --full --lessons 02 06"),
    ],
)
def test_make_hands_its_settings_to_the_commands(clone, line, said):
    last = clone.make(*shlex.split(line))[-1]
    assert last == f"python: -m {said} []"


def test_a_failure_of_lint_or_of_a_test_is_the_status_and_hides_nothing(clone):
    for fails in ("tools.lint", "lessons_lib test"):
        calls = clone.make("test", fails=fails, status=1)
        assert [call.split(" [")[0] for call in calls[-2:]] == ["python: -m tools.lint", "python: -m lessons_lib test"]
