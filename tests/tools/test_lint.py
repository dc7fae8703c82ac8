"""The house rules for notebooks, each with a lesson that breaks it."""

import sys

import nbformat
import pytest
from nbformat.v4 import new_markdown_cell, new_output
from support.notebooks import notebook

from lessons_lib.course.lessons import Lesson
from tools import lint, store


@pytest.fixture
def sound():
    """A notebook without problems, to break."""
    return stamp(notebook("print(tokens)", "seed + 1"))


def stamp(nb):
    """The notebook, as if its outputs had been stored with this code."""
    nb.metadata[store.CODE] = store.fingerprint(nb)
    return nb


@pytest.fixture
def problems(tmp_path, monkeypatch):
    """problems(notebook) -> what lint finds in it, as one text."""
    monkeypatch.setattr(store, "address", lambda: "")

    def of(nb) -> str:
        (tmp_path / "00_a_lesson.ipynb").write_text(nbformat.writes(nb))
        return "\n".join(lint.problems(Lesson(tmp_path / "00_a_lesson.ipynb")))

    return of


def last(nb):
    return nb.cells[-1]


def rename_kernel(nb):
    nb.metadata.kernelspec.name = "lessons"


def lose_seed(nb):
    nb.cells[2].source = nb.cells[2].source.replace("seed", "sead")


def output(kind, data=None, **fields):
    return lambda nb: last(nb).outputs.append(new_output(kind, data, **fields) if data else new_output(kind, **fields))


def source(text):
    return lambda nb: setattr(last(nb), "source", text)


def markdown(text):
    return lambda nb: nb.cells.append(new_markdown_cell(text))


def attach(nb):
    nb.cells.append(new_markdown_cell("![x](attachment:one_loop.png)"))
    last(nb).attachments = {"one_loop.png": {"image/png": "aaaa"}}


BREAKS = {
    "older format": (lambda nb: nb.update(nbformat_minor=4), "nbformat 4.5"),
    "kernel of one machine": (rename_kernel, "kernelspec"),
    "papermill left": (lambda nb: nb.metadata.update(papermill={}), "papermill is kept"),
    "widgets left": (lambda nb: nb.metadata.update(widgets={}), "widgets is kept"),
    "parameters lack one": (lose_seed, "lack seed"),
    "a parameter that is computed": (lambda nb: setattr(nb.cells[2], "source", "seed = len('x')"), "no literal"),
    "set-up cell edited": (lambda nb: setattr(nb.cells[1], "source", "pass"), "set-up cell"),
    "set-up cell missing": (lambda nb: nb.cells.pop(1), "set-up cell"),
    "link without address": (lambda nb: nb.cells.insert(1, new_markdown_cell("[x](y)", id=store.LINK_ID)), "Colab"),
    "path in source": (source("open('/home/me/x.txt')"), "absolute path: /home/me"),
    "path in output": (output("stream", name="stdout", text="in /tmp/abc/x"), "absolute path: /tmp/abc"),
    "path of windows": (source("open('C:\\\\data')"), "absolute path"),
    "picture without words": (markdown("![](x.png)"), "alt text"),
    "tag without words": (markdown('<img src="x.png" alt="">'), "alt text"),
    "drawing of before": (attach, "another drawing than imgs/"),
    "formula nobody reads": (markdown("$\\unknown{x}$"), "formula"),
    "an import from a module": (
        source("from lessons_lib.decoding.sampling import residual"),
        "imports from lessons_lib.decoding.sampling, which is no package",
    ),
    "an identifier that is gone": (markdown("Call `gone_with_it(seed)`."), "names gone_with_it, which"),
    "figure without words": (output("display_data", {"image/png": "aaaa"}), "figure without alt text"),
    "svg": (output("display_data", {"image/svg+xml": "<svg/>"}), "image/svg+xml"),
    "error": (output("error", ename="ValueError", evalue="no", traceback=[]), "keeps an error: ValueError"),
    "warning": (output("stream", name="stderr", text="careful"), "keeps a warning: careful"),
    "not executed": (lambda nb: setattr(last(nb), "execution_count", 9), "top to bottom"),
    "outputs of unknown code": (lambda nb: nb.metadata.pop(store.CODE), "its code changed after"),
    "outputs of other code": (lambda nb: nb.metadata.update({store.CODE: "of another run"}), "its code changed after"),
    "long line": (source(f"x = 1\ny = {'1' * 97}"), "has a line of 101 characters, 100 at most: y = 111"),
}


@pytest.mark.parametrize("break_it, said", BREAKS.values(), ids=BREAKS.keys())
def test_each_rule_finds_its_break(sound, problems, break_it, said):
    assert problems(sound) == ""
    break_it(sound)
    assert said in problems(sound)


def collapse(**metadata):
    def change(nb):
        last(nb).source = f"x = {'1' * 117}"
        last(nb).metadata = metadata

    return change


ALLOWED = {
    "addresses and fractions": source("'https://example.org/home/user', 'see a/tmp/b', 'N: x', 3 /2"),
    "known names": markdown("`generate(tokens)`, `--max-new-tokens`\n\n```\nanything_else\n```\n`flex_attention`"),
    "figure with words": output("display_data", {"image/png": "aaaa"}, metadata={"image/png": {"alt": "A line"}}),
    "long line that JupyterLab hides": collapse(jupyter={"source_hidden": True}),
    "long line that the site hides": collapse(tags=["hide-input"]),
}


@pytest.mark.parametrize("change", ALLOWED.values(), ids=ALLOWED.keys())
def test_what_the_rules_allow(sound, problems, change):
    change(sound)
    assert problems(stamp(sound)) == ""


@pytest.mark.parametrize(
    "call, said", [("print('all is well')", ""), ("print('no'); exit(1)", "no"), ("exit(1)", "failed")]
)
def test_a_tool_is_quoted_when_it_fails(call, said):
    heard = lint.complaint([sys.executable, "-c", call])
    assert said in heard and bool(said) == bool(heard)


def test_code_that_is_exported_and_used_by_nobody_is_reported(tmp_path):
    (tmp_path / "__init__.py").write_text('from pack.code import forgotten, taken\n__all__ = ["forgotten", "taken"]')
    (tmp_path / "code.py").write_text("def forgotten():\n    pass\n\n\ndef taken():\n    pass")
    (tmp_path / "lesson.py").write_text("from pack import taken\n\ntaken()")
    heard = lint.complaint([sys.executable, *lint.VULTURE, str(tmp_path)])
    assert "unused function 'forgotten'" in heard and heard.count("unused") == 1
