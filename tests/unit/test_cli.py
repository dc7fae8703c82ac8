"""The command `lessons`: it answers in sentences, and does what it is asked for."""

import os
import subprocess
import sys

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from lessons_lib import cli
from lessons_lib.cli import course as cli_course
from lessons_lib.course import runner, sweep
from lessons_lib.measure import machine
from lessons_lib.models import load, tiny
from lessons_lib.paths import ROOT

COMMANDS = ("generate", "probe", *cli_course.NEEDED)


@pytest.fixture
def started(monkeypatch):
    """The Pythons that would have been started, each as one text; `started.status` is what they return."""

    class Started(list):
        status = 0

    ran = Started()
    monkeypatch.setattr(cli_course, "python", lambda *call: ran.append(" ".join(map(str, call))) or ran.status)
    return ran


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_a_help_with_examples(name, capsys):
    with pytest.raises(SystemExit, match="0"):
        cli.main([name, "--help"])
    said = capsys.readouterr().out
    lines = said.partition("examples:\n")[2].strip().splitlines()
    assert len(lines) == (1 if name == "lab" else 2) and all(f"lessons {name}" in line for line in lines)


def test_the_module_and_the_command_are_one_and_list_the_commands():
    done = subprocess.run([sys.executable, "-m", "lessons_lib", "--help"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and all(f"\n    {name} " in done.stdout for name in COMMANDS)


def test_all_tests_run_and_every_lesson_even_after_a_failure(started):
    started.status = -11  # as after a crash
    assert cli.main(["test"]) == 1
    units, lessons = started
    assert units.startswith("-m pytest -q -n auto") and "--nbval-lax" in lessons and "12_effective" in lessons


def test_the_tests_take_lessons_and_refuse_unknown_ones_before_they_begin(started, capsys):
    assert cli.main(["test", "02"]) == 0
    assert started[-1].endswith("02_kv_cache.ipynb") and started[-1].count(".ipynb") == 1
    started.clear()
    assert cli.main(["test", "99"]) == 2 and not started
    assert capsys.readouterr().err.startswith("No lesson 99. The lessons are: 00_roofline")


def test_the_quick_tests_execute_no_lesson(started):
    assert cli.main(["test", "--quick"]) == 0 and len(started) == 1


def test_run_and_sweep_take_lessons_and_all_parameters_as_one(monkeypatch):
    seen = []
    monkeypatch.setattr(runner, "run", lambda *given: seen.append(given) or 0)
    monkeypatch.setattr(sweep, "sweep", lambda *given: seen.append(given) or 0)
    cli.main(["run", "01", "02", "--dtype", "fp32", "--params", "a=1", "b=x y"])
    cli.main(["sweep", "06", "--grid", "gamma=2,4", "--params", "seed=1", "--workers", "2"])
    assert seen == [
        (["01", "02"], {"a": "1", "b": "x y", "dtype": "fp32"}),
        (["06"], {"gamma": "2,4"}, {"seed": "1"}, 2, ""),
    ]


def test_bench_takes_claims_and_questions(started, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    started.status = 3
    assert cli.main(["bench", "cache", "--questions", "spec.jsonl"]) == 3
    assert started[0].endswith(f"bench.run cache --questions {tmp_path / 'spec.jsonl'}")


@pytest.mark.parametrize(("user", "said"), [(0, True), (1000, False)])
def test_jupyterlab_is_told_that_root_is_meant(monkeypatch, started, user, said):
    monkeypatch.setattr(os, "geteuid", lambda: user, raising=False)
    assert cli.main(["lab"]) == 0
    assert ("--allow-root" in started[0]) == said


@pytest.mark.parametrize(("command", "absent", "extra"), [("run", "papermill", "lessons"), ("test", "nbval", "test")])
def test_a_command_without_its_packages_names_them_and_the_extra(monkeypatch, capsys, command, absent, extra):
    monkeypatch.setattr(cli_course, "find_spec", lambda module: None if module == absent else "there")
    assert cli.main([command]) == 2
    said = capsys.readouterr().err
    assert f"needs {absent}" in said and f'-e ".[{extra}]"' in said


def test_the_courses_commands_do_not_run_outside_a_clone(tmp_path):
    assert not any(cli_course.unmet(name) for name in cli_course.NEEDED)
    assert all("clone its repository" in cli_course.unmet(name, tmp_path) for name in cli_course.NEEDED)


@pytest.fixture
def rates(monkeypatch):
    """A machine that reads 8 GB/s and multiplies in no time; the rates that were kept for the lessons."""
    found = machine.Hardware("cpu", "some CPU", 2, 8e9, 8e9, {"fp32": 6e9, "bf16": 7e9}, {"fp32": 1e15, "bf16": 1e15})
    monkeypatch.setattr(machine, "measure", lambda device, dtypes: found)
    monkeypatch.setattr(machine, "used_by_others", lambda: 0.75 * os.cpu_count())
    kept = []
    monkeypatch.setattr(machine, "_keep", lambda path, measured: kept.append(measured))
    return kept


def test_probe_names_the_machine_its_rates_and_the_most_tokens_per_second_of_a_model(rates, tmp_path, capsys):
    words = Tokenizer(WordLevel({f"w{i}": i for i in range(97)}, unk_token="w0"))
    tiny(2, torch.float32).save_pretrained(tmp_path)
    PreTrainedTokenizerFast(tokenizer_object=words, eos_token="w1").save_pretrained(tmp_path)
    assert cli.main(["probe", "--model", str(tmp_path), "--device", "cpu"]) == 0
    said = capsys.readouterr().out
    weights = load(str(tmp_path), "cpu", "fp32").shape.weights
    assert f"in fp32: at most {8e9 / (4 * weights):.3g} tokens/s" in said and "8.0 GB/s" in said
    assert f"in bf16: at most {8e9 / (2 * weights):.3g} tokens/s" in said and "Other programs use" in said


@pytest.mark.parametrize("used", [0.0, 1.5])
def test_probe_keeps_no_rates_of_a_busy_machine_for_the_lessons(rates, monkeypatch, used):
    monkeypatch.setattr(machine, "used_by_others", lambda: used * os.cpu_count())
    assert cli.main(["probe"]) == 0
    assert bool(rates) == (used == 0.0)


def test_probe_needs_no_weights_of_a_known_model_and_refuses_an_unknown_one(rates, capsys):
    assert cli.main(["probe"]) == 0
    assert "smollm2-135m in fp32: at most 14.9 tokens/s" in capsys.readouterr().out
    assert cli.main(["probe", "--model", "no-such-model"]) == 2
    assert "smollm2-135m" in capsys.readouterr().err
