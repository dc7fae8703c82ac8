"""Bars and lines for people, lines alone for batch runs."""

import os
import sys

import pytest
import torch
from jupyter_client.manager import start_new_kernel

from lessons_lib import progress
from lessons_lib.decoding.generate import generate
from lessons_lib.decoding.targets import CompiledTarget, compiled
from lessons_lib.models import tiny
from lessons_lib.models.decoder import Decoder


@pytest.fixture
def batch(monkeypatch):
    monkeypatch.setenv("LESSONS_LIB_BATCH", "1")


def test_a_bar_and_a_line_are_shown_to_a_person(monkeypatch, capsys):
    monkeypatch.delenv("LESSONS_LIB_BATCH", raising=False)
    assert list(progress.bar([1, 2], desc="Counting")) == [1, 2]
    progress.say("done")
    shown = capsys.readouterr().err
    assert "Counting" in shown and shown.endswith("done\n")


def test_a_batch_run_draws_no_bar_and_keeps_the_line(batch, capsys):
    assert list(progress.bar([1, 2], desc="Counting")) == [1, 2]
    progress.say("done")
    assert capsys.readouterr() == ("", "done\n")


@pytest.fixture(scope="module")
def ask():
    """Runs code in a kernel of its own as a front end does that can, or cannot, answer input(); what it prints."""
    environment = {name: value for name, value in os.environ.items() if name != progress.VARIABLE}
    manager, client = start_new_kernel(env=environment, extra_arguments=["--log-level=50"])

    def run(code, **options):
        printed = []
        hook = lambda message: printed.append(message["content"].get("text", ""))  # noqa: E731
        client.execute_interactive(code, output_hook=hook, timeout=60, **options)
        return "".join(printed).strip()

    yield run
    client.stop_channels()
    manager.shutdown_kernel(now=True)


ASK = "from lessons_lib import progress; print(progress.batch())"


def test_a_notebook_is_live_where_its_front_end_can_answer_and_batch_where_a_program_executes_it(ask):
    assert [ask(ASK, allow_stdin=answers) for answers in (True, False, True)] == ["False", "True", "False"]


@pytest.mark.parametrize("said", ["0", "1"])
def test_the_variable_decides_instead(ask, said):
    change = f"import os; os.environ['LESSONS_LIB_BATCH'] = '{said}'; "
    clear = "; del os.environ['LESSONS_LIB_BATCH']"
    assert ask(change + ASK + clear, allow_stdin=said == "1") == str(said == "1")


def test_outside_notebooks_somebody_watches(monkeypatch):
    monkeypatch.delenv("LESSONS_LIB_BATCH", raising=False)
    assert not progress.batch()


def test_on_a_terminal_a_line_begins_anew_because_a_bar_may_have_taken_it(monkeypatch, capsys):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    with progress.line("lesson"):
        pass
    begun, ended = capsys.readouterr().out.split("\r")
    assert begun.split() == ["lesson"] and ended.split()[:2] == ["lesson", "ok"]


def test_a_line_ends_with_how_it_went_also_where_that_raises(capsys):
    with progress.line("lesson") as said:
        said[0] = "half done"
    with pytest.raises(ZeroDivisionError), progress.line("model"):
        1 / 0  # noqa: B018
    assert [line.split()[:-2] for line in capsys.readouterr().out.splitlines()] == [
        ["lesson", "half", "done"],
        ["model", "FAILED"],
    ]


def test_a_batch_run_says_that_nothing_is_compiled(batch, monkeypatch, capsys):
    monkeypatch.setattr(compiled, "compiler_problem", lambda device: "there is no C++ compiler")
    CompiledTarget(Decoder.from_transformers(tiny()), context=32)
    assert capsys.readouterr().err == "there is no C++ compiler; decoding runs uncompiled\n"


def test_a_batch_run_says_that_it_waits_for_the_compiler(batch, monkeypatch, capsys):
    monkeypatch.setattr(compiled, "compiler_problem", lambda device: None)
    monkeypatch.setattr(torch, "compile", lambda step, **options: step)
    generate(CompiledTarget(Decoder.from_transformers(tiny()), context=32), [5, 80, 3], max_new_tokens=3)
    assert "compiling the 1-token step" in capsys.readouterr().err
