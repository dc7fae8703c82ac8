"""What Sphinx asks us while it builds: formulas as MathML, which needs no script, and docstrings in our plain style."""

from __future__ import annotations

from docutils import nodes
from sphinx.util import logging

from lessons_lib.course import render
from lessons_lib.course.site import docstrings, reference

log = logging.getLogger(__name__)


def setup(app) -> dict[str, bool]:
    """Called by Sphinx, which finds this module in its list of extensions."""
    app.add_html_math_renderer("mathml", (formula, None), (displayed, None))
    app.connect("autodoc-process-docstring", read)
    app.connect("autodoc-skip-member", foreign)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def formula(translator, node) -> None:
    """A formula within a line; SkipNode, as `write`."""
    write(translator, node, "inline")


def displayed(translator, node) -> None:
    """A formula of its own, which scrolls sideways on a narrow screen; SkipNode, as `write`."""
    translator.body.append('<div class="formula" tabindex="0">')
    write(translator, node, "block", after="</div>")


def write(translator, node, display: str, after: str = "") -> None:
    """A formula as MathML, in the page's text or a line of its own; a warning where that cannot be.

    Always raises SkipNode, by which docutils learns that nothing of the node is left to visit.
    """
    if render.mathml(node.astext(), display) is None:
        log.warning("a formula that cannot be rendered: %s", node.astext(), location=node)
    translator.body.append(render.math(node.astext(), display) + after)
    raise nodes.SkipNode


def read(app, what: str, name: str, thing, options, lines: list[str]) -> None:
    """Replace a docstring's lines, in place."""
    text = docstrings.to_rst(lines)
    lines[:] = map(reference.home, text) if name == "lessons_lib" else text


def foreign(app, what: str, name: str, thing, skipped: bool, options) -> bool | None:
    """Leave out functions and classes of other libraries, such as the default of a field; None: as Sphinx likes."""
    home = getattr(thing, "__module__", None)
    return True if callable(thing) and home and not home.startswith("lessons_lib") else None
