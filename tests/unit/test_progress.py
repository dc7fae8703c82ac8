"""Bars and lines for people, lines alone for batch runs."""

import pytest
import torch

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
