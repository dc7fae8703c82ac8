"""The house rules for notebooks, each with a lesson that breaks it."""

import pytest
from nbformat.v4 import new_markdown_cell, new_output

from lessons_lib.course import checks, colab
from lessons_lib.course.lessons import find, select, tagged


def problems(nb) -> str:
    return "\n".join(checks.problems(nb, "00_a_lesson", ""))


def test_a_sound_lesson_has_no_problems(sound_lesson):
    assert problems(sound_lesson) == ""


def last(nb):
    return nb.cells[-1]


def rename_kernel(nb):
    nb.metadata.kernelspec.name = "lessons"


def second_parameters(nb):
    last(nb).metadata["tags"] = ["parameters"]


def lose_seed(nb):
    cell = tagged(nb, "parameters")[0]
    cell.source = cell.source.replace("seed", "sead")


def output(kind, data=None, **fields):
    return lambda nb: last(nb).outputs.append(new_output(kind, data, **fields) if data else new_output(kind, **fields))


def source(text):
    return lambda nb: setattr(last(nb), "source", text)


def markdown(text):
    return lambda nb: nb.cells.append(new_markdown_cell(text))


BREAKS = {
    "older format": (lambda nb: nb.update(nbformat_minor=4), "nbformat 4.5"),
    "no ids": (lambda nb: last(nb).pop("id"), "cell ids"),
    "kernel of one machine": (rename_kernel, "kernelspec"),
    "papermill left": (lambda nb: nb.metadata.update(papermill={}), "papermill is kept"),
    "widgets left": (lambda nb: nb.metadata.update(widgets={}), "widgets is kept"),
    "two parameter cells": (second_parameters, "exactly one cell"),
    "parameters lack one": (lose_seed, "lack seed"),
    "set-up cell edited": (lambda nb: setattr(nb.cells[1], "source", "pass"), "set-up cell"),
    "set-up cell missing": (lambda nb: nb.cells.pop(1), "set-up cell"),
    "link without address": (
        lambda nb: nb.cells.insert(1, new_markdown_cell("[x](y)", id=colab.LINK_ID)),
        "Colab link",
    ),
    "path in source": (source("open('/home/me/x.txt')"), "absolute path: /home/me"),
    "path in output": (output("stream", name="stdout", text="in /tmp/abc/x"), "absolute path: /tmp/abc"),
    "path of windows": (source("open('C:\\\\data')"), "absolute path"),
    "picture without words": (markdown("![](x.png)"), "alt text"),
    "tag without words": (markdown('<img src="x.png" alt="">'), "alt text"),
    "formula nobody reads": (markdown("$\\unknown{x}$"), "formula"),
    "figure without words": (output("display_data", {"image/png": "aaaa"}), "figure without alt text"),
    "svg": (output("display_data", {"image/svg+xml": "<svg/>"}), "image/svg+xml"),
    "error": (output("error", ename="ValueError", evalue="no", traceback=[]), "keeps an error: ValueError"),
    "warning": (output("stream", name="stderr", text="careful"), "keeps a warning: careful"),
    "not executed": (lambda nb: setattr(last(nb), "execution_count", 9), "top to bottom"),
    "long line": (source(f"x = 1\ny = {'1' * 117}"), "has a line of 121 characters, 120 at most: y = 111"),
}


@pytest.mark.parametrize("break_it, said", BREAKS.values(), ids=BREAKS.keys())
def test_each_rule_finds_its_break(sound_lesson, break_it, said):
    break_it(sound_lesson)
    assert said in problems(sound_lesson)


def test_addresses_and_fractions_are_no_absolute_paths(sound_lesson):
    last(sound_lesson).source = "'https://example.org/home/user', 'see a/tmp/b', 'N: x', 3 /2"
    assert problems(sound_lesson) == ""


def test_figure_with_alt_text_is_fine(sound_lesson):
    output("display_data", {"image/png": "aaaa"}, metadata={"image/png": {"alt": "A line"}})(sound_lesson)
    assert problems(sound_lesson) == ""


def test_cells_may_be_many_and_long(sound_lesson):
    last(sound_lesson).source = "\n".join([f"x = {'1' * 116}"] * 200)
    sound_lesson.cells += [new_markdown_cell("x") for _ in range(100)]
    assert problems(sound_lesson) == ""


@pytest.mark.parametrize("metadata", [{"jupyter": {"source_hidden": True}}, {"tags": ["hide-input"]}])
def test_a_collapsed_cell_may_have_long_lines(sound_lesson, metadata):
    last(sound_lesson).source = f"x = {'1' * 117}"
    last(sound_lesson).metadata = metadata
    assert problems(sound_lesson) == ""


@pytest.mark.parametrize("name", checks.LONG_LINES)
def test_a_lesson_that_may_have_long_lines_exists_and_has_them(name):
    [lesson] = select(find(), [name])
    assert "120 at most" in "\n".join(checks.problems(lesson.read(), "13_new"))
    assert "120 at most" not in "\n".join(checks.problems(lesson.read(), name))


def test_lint_names_the_lesson(write_lesson):
    found = checks.lint([write_lesson("00_lesson", f"x = {'1' * 117}")])
    assert [line for line in found if line.startswith("00_lesson: has a line of 121 characters")]
