"""Lessons executed in a row: failures apart, parameters injected, models chosen."""

import json
import sys

import nbformat
import pytest
from support.families import tiny_of
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from lessons_lib.course import runner
from lessons_lib.course.lessons import Lesson, UsageError
from lessons_lib.measure.results import MIME
from lessons_lib.models import names
from lessons_lib.models.hub import LLAMA_LIKE
from lessons_lib.paths import ROOT

SCORE = {"lesson": "01", "claim": "tokens", "unit": "", "predicted": 4, "measured": 4}
SHOW = f"from IPython.display import display\ndisplay({{{MIME!r}: [{SCORE!r}], 'text/plain': 'scores'}}, raw=True)"


@pytest.fixture
def prepared(monkeypatch):
    """The models that a run prepared, none of them loaded."""
    seen = []
    monkeypatch.setattr(runner, "prepare", lambda *given: seen.append(given))
    monkeypatch.delenv("LESSONS_LIB_BATCH", raising=False)
    return seen


def test_a_failing_lesson_stops_no_other_and_is_named_with_its_cell(prepared, write_lesson, tmp_path, capsys):
    lessons = [
        write_lesson("00_broken", "1 + 1", "value = {}\nvalue['missing']"),
        write_lesson("01_sound", "from lessons_lib.progress import batch\nassert batch()", "print(tokens + 1)", SHOW),
    ]
    status = runner.run([], {"tokens": "3", "model": "other"}, tmp_path / "build", lessons)
    said = capsys.readouterr().out
    assert status == 1
    assert "1 of 2 lessons failed:\n  00_broken: cell [5] (`value = {}`): KeyError: 'missing'" in said
    assert [line.split()[:2] for line in said.splitlines()[:2]] == [["00_broken", "FAILED"], ["01_sound", "ok"]]
    assert prepared == [("other", "auto", "auto", True)]
    built = {path.name for path in (tmp_path / "build").iterdir()}
    assert built >= {
        "index.html",
        "scorecard.html",
        "scorecard.md",
        "scorecard.json",
        "00_broken.html",
        "01_sound.html",
    }
    scores = json.loads((tmp_path / "build" / "scorecard.json").read_text())["scores"]
    assert [(row["claim"], row["measured"]) for row in scores] == [("tokens", 4)]
    index = (tmp_path / "build" / "index.html").read_text()
    assert "failed in cell [5]" in index and 'href="01_sound.html"' in index and 'href="scorecard.html"' in index


def test_a_kernel_that_dies_is_named_with_the_cell_that_ran(prepared, write_lesson, tmp_path, capsys):
    lesson = write_lesson("00_dying", "print(tokens)", "import os\nos._exit(1)", "print(model)")
    assert runner.run([], {}, tmp_path / "build", [lesson]) == 1
    said = capsys.readouterr().out
    assert "FAILED in cell [4] (`import os`): DeadKernelError" in said


@pytest.mark.usefixtures("prepared")
@pytest.mark.parametrize("out, err", [(True, True), (False, True)])
def test_cells_are_counted_on_a_terminal_and_not_in_a_log(write_lesson, tmp_path, monkeypatch, capsys, out, err):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: out)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: err)
    runner.run([], {}, tmp_path / "build", [write_lesson("00_lesson", "print(tokens)")])
    assert ("00_lesson:" in capsys.readouterr().err) == (out and err)


def test_injected_parameters_reach_the_lesson_and_its_source_stays(prepared, write_lesson, tmp_path):
    lesson = write_lesson("00_lesson", "print(tokens + 1, model)")
    before = lesson.path.read_bytes()
    assert runner.run(["00"], {"tokens": "41", "model": "other"}, tmp_path / "build", [lesson]) == 0
    done = nbformat.read(tmp_path / "build" / "00_lesson.ipynb", as_version=4)
    assert done.cells[-1].outputs[0].text == "42 other\n"
    assert lesson.path.read_bytes() == before


@pytest.mark.usefixtures("prepared")
def test_braces_in_the_path_of_the_clone_are_no_parameters(write_lesson, tmp_path):
    folder = write_lesson("00_lesson", "print(tokens)").path.parent.rename(tmp_path / "{x}")
    assert runner.run([], {}, tmp_path / "{x}" / "build", [Lesson(folder / "00_lesson.ipynb")]) == 0
    assert (tmp_path / "{x}" / "build" / "00_lesson.html").is_file()


@pytest.mark.parametrize("asked, given", [(["99"], {}), ([], {"tokns": "1"}), ([], {"tokens": "many"})])
def test_nothing_runs_when_something_asked_for_does_not_exist(prepared, write_lesson, tmp_path, asked, given):
    with pytest.raises(UsageError):
        runner.run(asked, given, tmp_path / "build", [write_lesson("00_lesson")])
    assert not (tmp_path / "build").exists() and not prepared


def test_an_unknown_model_is_answered_with_the_valid_ones(write_lesson, tmp_path):
    with pytest.raises(UsageError, match="smollm2-135m"):
        runner.run([], {"model": "smollm2-135"}, tmp_path / "build", [write_lesson("00_lesson")])
    assert not (tmp_path / "build").exists()


@pytest.fixture
def opt_folder(tmp_path):
    """A checkpoint of a family that the readable decoder does not compute."""
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(97)}, unk_token="w0"))
    tiny_of("opt").save_pretrained(tmp_path / "tiny-opt")
    PreTrainedTokenizerFast(tokenizer_object=words, eos_token="w1").save_pretrained(tmp_path / "tiny-opt")
    return str(tmp_path / "tiny-opt")


def test_a_model_that_is_not_llama_like_is_refused_with_those_that_are(opt_folder, write_lesson, tmp_path, capsys):
    with pytest.raises(UsageError) as caught:
        runner.run([], {"model": opt_folder, "dtype": "fp32"}, tmp_path / "build", [write_lesson("00_lesson")])
    assert str(caught.value).startswith("The lessons take Llama-like models such as smollm2-135m, ")
    assert str(caught.value).endswith("tiny-opt is none.") and "target(" not in str(caught.value)
    assert "tiny-opt" in capsys.readouterr().out and not (tmp_path / "build").exists()


def test_a_known_name_that_is_not_llama_like_is_refused_before_it_is_fetched(monkeypatch):
    monkeypatch.setattr("lessons_lib.models.load", None)  # calling it would fail
    with pytest.raises(UsageError, match="and pythia-160m is none"):
        runner.prepare("pythia-160m", "cpu", "fp32", ours=True)


def test_a_lesson_with_a_draft_takes_a_pair_of_any_family(opt_folder, write_lesson, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(runner, "execute", lambda *given: pytest.fail("enough"))
    lesson = write_lesson("06_lesson", draft=opt_folder)
    with pytest.raises(pytest.fail.Exception, match="enough"):
        runner.run([], {"model": opt_folder, "dtype": "fp32"}, tmp_path / "build", [lesson])
    assert capsys.readouterr().out.count("tiny-opt") == 1


def test_the_page_of_commands_names_the_models_that_the_lessons_take():
    text = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    assert f"The lessons take Llama-like models such as {', '.join(LLAMA_LIKE)};" in text
    assert set(LLAMA_LIKE) <= {*names()}


def test_a_models_folder_is_made_absolute_because_kernels_run_elsewhere(tmp_path, monkeypatch):
    for name in ("checkpoint", "smollm2-135m"):
        (tmp_path / name).mkdir()
    (tmp_path / "checkpoint" / "config.json").touch()
    monkeypatch.chdir(tmp_path)
    at = str((tmp_path / "checkpoint").resolve())
    assert runner.absolute({"model": "checkpoint", "draft": "checkpoint"}) == {"model": at, "draft": at}
    assert runner.absolute({"model": "smollm2-135m"}) == {"model": "smollm2-135m"}  # a folder without a checkpoint
