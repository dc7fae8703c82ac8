"""The commands of `lessons`, with the tools behind them replaced by ears."""

import argparse
import os
import re
import shlex
import subprocess
import sys

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from lessons_lib import __main__ as command_line
from lessons_lib.course import checks, commands, lessons, readme, runner, sweep, tools
from lessons_lib.measure import claims, evidence, hardware, machine
from lessons_lib.models import load, tiny
from lessons_lib.paths import ROOT

NONE = argparse.Namespace()


@pytest.fixture
def started(monkeypatch):
    """What would have been started, each as one text; `started.status` is what it returns, by its beginning."""

    class Started(list):
        status: dict[str, int] = {}

    ran = Started()

    def pretend(*arguments):
        ran.append(" ".join(map(str, arguments)))
        return next((status for start, status in ran.status.items() if ran[-1].startswith(start)), 0)

    monkeypatch.setattr(commands, "python", pretend)
    monkeypatch.setattr(checks, "lint", lambda: [])
    monkeypatch.setattr(tools, "lint", lambda: [])
    return ran


def test_the_quick_tests_are_lint_and_pytest(started):
    assert commands.test_quick(NONE) == 0
    (call,) = started
    assert call.startswith("-m pytest -q -n auto")


def asked(*lessons):
    """The options of `test` for these lessons."""
    return command_line.parser().parse_args(["test", *lessons])


def test_all_tests_run_every_lesson_even_after_a_failure(started):
    started.status = {"-m pytest": 1}
    assert commands.test(asked()) == 1
    [call] = [line for line in started if "--nbval-lax" in line]
    assert re.findall(r"(\d\dx?_\w+)\.ipynb", call) == [lesson.name for lesson in lessons.find()]


def test_the_tests_take_lessons_and_refuse_unknown_ones_before_they_begin(started):
    assert commands.test(asked("02")) == 0
    assert started[-1].endswith("02_kv_cache.ipynb") and started[-1].count(".ipynb") == 1
    started.clear()
    with pytest.raises(lessons.UsageError, match="No lesson 99"):
        commands.test(asked("99"))
    assert not started


def test_a_run_that_a_signal_ended_has_failed(started):
    started.status = {"-m pytest -q": -11}
    assert commands.test_quick(NONE) == 1 and commands.test(asked()) == 1


def test_lint_reports_what_tools_and_house_rules_find(started, monkeypatch, capsys):
    monkeypatch.setattr(checks, "lint", lambda: ["02: is wrong"])
    monkeypatch.setattr(tools, "lint", lambda: ["unused"])
    assert commands.lint(NONE) == 1 and capsys.readouterr().err == "unused\n02: is wrong\n"


@pytest.mark.parametrize(
    "call, said", [("print('all is well')", ""), ("print('no'); exit(1)", "no"), ("exit(1)", "failed")]
)
def test_a_tool_is_heard_when_it_complains(call, said):
    heard = tools.complaint([sys.executable, "-c", call])
    assert said in heard and bool(said) == bool(heard)


def test_a_lessons_code_becomes_a_script(write_lesson, tmp_path, monkeypatch):
    monkeypatch.setattr(tools, "find", lambda: [write_lesson("02_kv_cache", "show()")])
    tools.write_scripts(tmp_path / "lint")
    assert "show()" in (tmp_path / "lint" / "02_kv_cache.py").read_text()


def test_bench_ends_with_what_falls_short_and_fills_readme(started, monkeypatch, capsys):
    filled, values = [], {"a": 1.0, "b": 3.0, "c": None}
    monkeypatch.setattr(readme, "fill", lambda: filled.append(1))
    monkeypatch.setattr(claims, "load", lambda path: [claims.make_row(*row, ">= 2") for row in values.items()])
    monkeypatch.setattr(evidence, "write", lambda results, page: page)
    assert commands.bench(argparse.Namespace(claims=["cache"], quick=False, questions=None)) == 0
    assert started[0].endswith("bench.run cache") and filled
    page, *fallen = capsys.readouterr().out.splitlines()
    assert page.endswith("bench.html")
    assert fallen == ["bar not reached: a is 1 x, bar >= 2", "bar not reached: c is not measured, bar >= 2"]


def test_a_quick_bench_shows_its_own_rows_and_leaves_readme_alone(started, monkeypatch, capsys):
    monkeypatch.setattr(readme, "fill", lambda: pytest.fail("README shows full runs"))
    monkeypatch.setattr(evidence, "write", lambda results, page: results)
    loaded = []
    monkeypatch.setattr(claims, "load", lambda path: loaded.append(path) or [])
    assert commands.bench(argparse.Namespace(claims=[], quick=True, questions=None)) == 0
    quick = ROOT / "build" / "bench" / "quick"
    assert loaded == [quick / "claims.json"] and str(quick) in capsys.readouterr().out


def test_bench_with_other_questions_leaves_readme_alone(started, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(readme, "fill", lambda: pytest.fail("the tables are of our own questions"))
    monkeypatch.chdir(tmp_path)
    started.status = {"-m bench.run": 3}
    assert commands.bench(command_line.parser().parse_args(["bench", "--questions", "spec.jsonl"])) == 3
    assert started[0].endswith(f"bench.run --questions {tmp_path / 'spec.jsonl'}") and not capsys.readouterr().out


def test_a_wrong_name_is_one_sentence_and_a_status(monkeypatch, capsys):
    def refuse(*arguments):
        raise lessons.UsageError("No lesson 99. The lessons are: 00_machine.")

    monkeypatch.setattr(runner, "run", refuse)
    options = command_line.parser().parse_args(["run", "99"])
    assert commands.dispatch(options) == 2
    assert capsys.readouterr().err == "No lesson 99. The lessons are: 00_machine.\n"


def test_run_takes_lessons_and_all_parameters_as_one(monkeypatch):
    monkeypatch.setattr(runner, "run", lambda *given: given)
    options = command_line.parser().parse_args(["run", "01", "02", "--dtype", "fp32", "--params", "a=1", "b=x y"])
    assert commands.run(options) == (["01", "02"], {"a": "1", "b": "x y", "dtype": "fp32"})


def test_sweep_takes_a_grid_and_what_run_takes(monkeypatch):
    monkeypatch.setattr(sweep, "sweep", lambda *given: given)
    line = ["sweep", "06", "--grid", "gamma=2,4", "--dtype", "fp32", "--params", "seed=1", "--workers", "2"]
    options = command_line.parser().parse_args(line)
    assert commands.sweep(options) == (["06"], {"gamma": "2,4"}, {"seed": "1", "dtype": "fp32"}, 2, "")


@pytest.mark.parametrize(
    ("asked", "said"), [([], "tests/browser"), (["06", "02"], "tests/browser --lessons 06 02")], ids=["all", "some"]
)
def test_the_browser_test_takes_lessons(started, asked, said):
    assert commands.test_browser(command_line.parser().parse_args(["test-browser", *asked])) == 0
    assert started[0].endswith(said)


def test_a_lesson_that_does_not_exist_opens_no_browser(started, monkeypatch, capsys):
    monkeypatch.setattr(commands, "is_installed", lambda package: True)
    assert commands.dispatch(command_line.parser().parse_args(["test-browser", "99"])) == 2
    assert capsys.readouterr().err.startswith("No lesson 99.") and not started


def test_the_browser_test_is_no_part_of_the_tests():
    call = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "tests"]
    found = subprocess.run(
        [*call, "--ignore=tests/unit", "--ignore=tests/peers"], cwd=ROOT, capture_output=True, text=True
    )
    assert "tests/notebooks" in found.stdout and "tests/browser" not in found.stdout


def test_every_command_of_the_command_line_exists(capsys):
    with pytest.raises(SystemExit):
        command_line.main(["--help"])
    said = capsys.readouterr().out
    assert all(f"    {name}" in said for name in [*commands.COMMANDS, "clean"])


@pytest.fixture
def rates(monkeypatch):
    """A machine that reads 8 GB/s and multiplies in no time."""
    found = hardware.Hardware("cpu", "some CPU", 2, 8e9, 8e9, {"fp32": 6e9, "bf16": 7e9}, {"fp32": 1e15, "bf16": 1e15})
    monkeypatch.setattr(hardware, "measure", lambda device, dtypes: found)
    monkeypatch.setattr(machine, "used_by_others", lambda: 0.75 * os.cpu_count())
    kept = []
    monkeypatch.setattr(hardware, "_keep", lambda path, measured: kept.append(measured))
    return kept


def test_probe_names_the_machine_its_rates_and_the_most_tokens_per_second_of_a_model(rates, tmp_path, capsys):
    words = Tokenizer(WordLevel({f"w{i}": i for i in range(97)}, unk_token="w0"))
    tiny(2, torch.float32).save_pretrained(tmp_path)
    PreTrainedTokenizerFast(tokenizer_object=words, eos_token="w1").save_pretrained(tmp_path)
    assert command_line.main(["probe", "--model", str(tmp_path), "--device", "cpu"]) == 0
    said = capsys.readouterr().out
    weights = load(str(tmp_path), "cpu", "fp32").shape.weights
    assert f"in fp32: at most {8e9 / (4 * weights):.3g} tokens/s" in said and "8.0 GB/s" in said
    assert f"in bf16: at most {8e9 / (2 * weights):.3g} tokens/s" in said and "Other programs use" in said


@pytest.mark.parametrize("used", [0.0, 1.5])
def test_probe_keeps_no_rates_of_a_busy_machine_for_the_lessons(rates, monkeypatch, used):
    monkeypatch.setattr(machine, "used_by_others", lambda: used * os.cpu_count())
    assert command_line.main(["probe"]) == 0
    assert bool(rates) == (used == 0.0)


def test_probe_needs_no_weights_of_a_known_model_and_refuses_an_unknown_one(rates, capsys):
    assert command_line.main(["probe"]) == 0
    assert "smollm2-135m in fp32: at most 14.9 tokens/s" in capsys.readouterr().out
    assert command_line.main(["probe", "--model", "no-such-model"]) == 2
    assert "smollm2-135m" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "absent", "extra"),
    [("run", "papermill", "lessons"), ("site", "Sphinx", "site"), ("test", "Sphinx", "test")],
)
def test_a_command_without_its_packages_names_them_and_the_extra(monkeypatch, capsys, command, absent, extra):
    monkeypatch.setattr(commands, "is_installed", lambda package: package != absent)
    monkeypatch.setitem(commands.COMMANDS, command, lambda options: pytest.fail("it began"))
    assert command_line.main([command]) == 2
    said = capsys.readouterr().err
    assert f"({absent})" in said and f'-e ".[{extra}]"' in said


def test_every_command_but_clean_runs_where_all_is_installed_and_none_outside_a_clone(monkeypatch, tmp_path):
    monkeypatch.setattr(commands, "is_installed", lambda package: False)
    assert [name for name in [*commands.COMMANDS, "clean"] if not commands.unmet(name)] == ["clean"]
    monkeypatch.setattr(commands, "is_installed", lambda package: True)
    assert not any(commands.unmet(name) for name in commands.COMMANDS)
    assert all("clone its repository" in commands.unmet(name, tmp_path) for name in [*commands.COMMANDS, "clean"])


def test_a_bare_python_learns_what_to_install():
    alone = [sys.executable, "-I", "-S", "-c", "import sys; sys.path.insert(0, sys.argv.pop(1)); import runpy; "
             "runpy.run_module('lessons_lib', run_name='__main__', alter_sys=True)"]  # fmt: skip
    done = subprocess.run([*alone, str(ROOT), "lab"], cwd=ROOT.parent, capture_output=True, text=True)
    assert done.returncode == 2 and "jupyterlab" in done.stderr and '".[lessons]"' in done.stderr
    assert "Traceback" not in done.stderr


def test_clean_removes_what_commands_leave_and_nothing_else(tmp_path):
    for name in ("build/lib", ".venv/bin", "lessons_lib/course/__pycache__", "notebooks/.ipynb_checkpoints", "imgs"):
        (tmp_path / name).mkdir(parents=True)
    assert commands.clean(tmp_path) == 0
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")}
    assert left == {".venv", ".venv/bin", "lessons_lib", "lessons_lib/course", "notebooks", "imgs"}


@pytest.mark.parametrize(
    "line, said",
    [
        ("run LESSONS='01 02' MODEL=m PARAMS='a=1 b=2'", "run 01 02 --model m --params a=1 b=2"),
        ("run DEVICE=cpu DTYPE=fp32", "run --device cpu --dtype fp32"),
        ("test LESSONS='00 01'", "test 00 01"),
        ("probe MODEL=m DEVICE=cpu", "probe --model m --device cpu"),
        ("test-quick", "test-quick"),
        ("test-browser LESSONS=06 FULL=1", "test-browser 06 --full"),
        (
            "sweep LESSONS=06 GRID='gamma=2,4 seed=0,1' DTYPE=fp32 WORKERS=2 SCHEDULER=tcp://one:8786",
            "sweep 06 --dtype fp32 --grid gamma=2,4 seed=0,1 --workers 2 --scheduler-address tcp://one:8786",
        ),
        ("lessons LESSONS=02", "lessons 02"),
        ("bench QUICK=1 CLAIMS=cache", "bench cache --quick"),
        ("bench QUESTIONS=spec.jsonl", "bench --questions spec.jsonl"),
    ],
)
@pytest.mark.skipif(sys.platform == "win32", reason="make is not at hand on Windows")
def test_make_calls_the_same_commands(line, said):
    own = re.findall(r"\$\((\w+)\)", (ROOT / "Makefile").read_text())  # make may run us, and hands these on
    alone = {name: value for name, value in os.environ.items() if name not in own and not name.startswith("MAKE")}
    done = subprocess.run(f"make -n {line}", shell=True, cwd=ROOT, capture_output=True, text=True, env=alone)
    assert shlex.split(done.stdout.splitlines()[-1]) == [".venv/bin/python", "-m", "lessons_lib", *said.split()]


@pytest.mark.parametrize(("user", "said"), [(0, True), (1000, False)])
def test_jupyter_is_told_that_root_is_meant(started, monkeypatch, user, said):
    monkeypatch.setattr(os, "geteuid", lambda: user, raising=False)
    commands.lab(NONE)
    assert ("--allow-root" in started[0]) is said and started[0].endswith("notebooks")
