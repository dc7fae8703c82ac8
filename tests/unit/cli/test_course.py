"""The commands for a clone of the course: what they start, and what they refuse."""

import os
import signal

import pytest

from lessons_lib import cli
from lessons_lib.cli import course
from lessons_lib.course import runner, sweep
from lessons_lib.quantization import cpu


@pytest.fixture
def started(monkeypatch):
    """The Pythons that would have been started, each as one text; `started.status` is what they return."""

    class Started(list):
        status = 0

    ran = Started()
    monkeypatch.setattr(course, "python", lambda *call: ran.append(" ".join(map(str, call))) or ran.status)
    return ran


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


def test_lessons_of_8_bit_products_are_left_out_where_the_cpu_has_none_unless_they_are_named(
    started, monkeypatch, capsys
):
    for has, there in ((False, False), (True, True)):
        monkeypatch.setattr(cpu, "integer_units", lambda has=has: has)
        assert cli.main(["test"]) == 0
        assert ("10_quantization" in started[-1]) == ("11_ladder" in started[-1]) == there
        assert "09_medusa" in started[-1] and ("lessons 10 11" in capsys.readouterr().out) != there
    monkeypatch.setattr(cpu, "integer_units", lambda: False)
    assert cli.main(["test", "11"]) == 0 and "11_ladder" in started[-1]


def test_the_quick_tests_execute_no_lesson_and_take_none(started, capsys):
    assert cli.main(["test", "--quick"]) == 0 and len(started) == 1
    assert cli.main(["test", "02", "--quick"]) == 2 and len(started) == 1
    assert "name lessons or give --quick, not both" in capsys.readouterr().err


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


def test_a_bench_that_fails_lists_no_claims_of_an_earlier_one(started, monkeypatch):
    monkeypatch.setattr("lessons_lib.measure.results.load", None)  # calling it would fail
    started.status = 2
    assert cli.main(["bench", "no-such-claim"]) == 2


def test_control_c_waits_until_the_python_that_was_started_has_ended(monkeypatch, tmp_path):
    monkeypatch.setattr(course, "ROOT", tmp_path)
    # it goes on for longer than subprocess.call lets it
    code = "import os, signal, time; os.kill(os.getppid(), signal.SIGINT); time.sleep(1); open('ended', 'w').close()"
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            course.python("-c", code)
    finally:
        signal.signal(signal.SIGINT, before)
    assert (tmp_path / "ended").exists()


@pytest.mark.parametrize(("user", "said"), [(0, True), (1000, False)])
def test_jupyterlab_is_told_that_root_is_meant(monkeypatch, started, user, said):
    monkeypatch.setattr(os, "geteuid", lambda: user, raising=False)
    assert cli.main(["lab"]) == 0
    assert ("--allow-root" in started[0]) == said


@pytest.mark.parametrize(("command", "absent", "extra"), [("run", "papermill", "lessons"), ("test", "nbval", "test")])
def test_a_command_without_its_packages_names_them_and_the_extra(monkeypatch, capsys, command, absent, extra):
    monkeypatch.setattr(course, "find_spec", lambda module: None if module == absent else "there")
    assert cli.main([command]) == 2
    said = capsys.readouterr().err
    assert f"needs {absent}" in said and f'-e ".[{extra}]"' in said


def test_the_courses_commands_do_not_run_outside_a_clone(monkeypatch, tmp_path):
    assert not any(course.unmet(name) for name in course.NEEDED)
    monkeypatch.setattr(course, "ROOT", tmp_path)
    assert all("clone its repository" in course.unmet(name) for name in course.NEEDED)
