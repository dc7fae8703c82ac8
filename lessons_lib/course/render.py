"""Lessons as self-contained HTML pages: no network requests, and formulas as MathML."""

from __future__ import annotations

import html
import re
from pathlib import Path

import nbformat
from jinja2 import DictLoader, pass_context
from latex2mathml.converter import convert
from nbconvert import HTMLExporter
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath

from lessons_lib.course.lessons import SETUP_ID

# nbconvert's own page, without the scripts it loads from CDNs (require.js, MathJax, mermaid, widgets).
TEMPLATE = """{%- extends 'lab/index.html.j2' -%}
{%- block html_head_js -%}{%- endblock -%}
{%- block jupyter_widgets -%}{%- endblock -%}
{%- block html_head_js_mathjax -%}{%- endblock -%}
{%- block html_head_js_mermaidjs -%}{%- endblock -%}
{%- block extra_css -%}<style>
main { max-width: 70em; margin: 0 auto; }
main .jp-InputArea-editor { overflow-x: auto; }
math { font-size: 1.15em; }
math[display="block"] { margin: 1em 0; }
mtd[columnalign="right"] { text-align: right; text-align: -webkit-right; padding-right: 0; }
mtd[columnalign="left"] { text-align: left; padding-left: 0; }
</style>{%- endblock -%}
{%- block data_png scoped -%}
{%- set said = output.metadata.get('image/png', {}) -%}
<div class="jp-RenderedImage jp-OutputArea-output">
<img src="data:image/png;base64,{{ output.data['image/png'] }}" alt="{{ said.get('alt', '') | escape_html }}"
{%- if said.get('width') %} width="{{ said['width'] }}"{% endif %}></div>
{%- endblock -%}
"""


def mathml(latex: str, display: str = "inline") -> str | None:
    """Convert LaTeX without its dollars to a MathML element; None if the converter cannot parse it."""
    try:
        element = convert(latex.strip().replace("{aligned}", "{split}"), display=display)
    except Exception:  # the converter raises a dozen exceptions without a common base
        return None
    return None if "<mi>\\" in element or "<mi>&</mi>" in element else element


def math(latex: str, display: str = "inline") -> str:
    """The formula as MathML; if that fails, the LaTeX source, which `make lint` reports."""
    return mathml(latex, display) or f"<code>{html.escape(latex.strip())}</code>"


class MathRenderer(IPythonRenderer):
    """nbconvert's markdown renderer, with formulas as MathML and folded parts that stay folded."""

    def _html_embed_images(self, html: str) -> str:
        # parses each piece separately, and so closes a <details> before its content, which is another piece
        return super()._html_embed_images(html) if "<img" in html else html

    def inline_math(self, body: str) -> str:
        """A formula between dollars."""
        return math(body)

    def block_math(self, body: str) -> str:
        """A formula between double dollars."""
        return math(body, "block")

    def latex_environment(self, name: str, body: str) -> str:
        """A formula between \\begin{name} and \\end{name}."""
        return math(f"\\begin{{{name}}}{body}\\end{{{name}}}", "block")


def unreadable(markdown: str) -> list[str]:
    """The formulas in a markdown text that cannot be converted to MathML."""
    seen: list[str] = []

    class Listing(MathRenderer):
        def inline_math(self, body: str) -> str:
            seen.append(body)
            return ""

        block_math = inline_math

        def image(self, *picture, **more) -> str:
            return ""

        def latex_environment(self, name: str, body: str) -> str:
            return self.inline_math(f"\\begin{{{name}}}{body}\\end{{{name}}}")

    MarkdownWithMath(renderer=Listing()).render(markdown)
    return [latex for latex in seen if mathml(latex) is None]


class PageExporter(HTMLExporter):
    """Exports one notebook as one HTML file."""

    @pass_context
    def markdown2html(self, context, source):
        """Render a markdown cell with MathRenderer."""
        renderer = MathRenderer(
            escape=False,
            attachments=context.get("cell", {}).get("attachments", {}),
            embed_images=True,
            path=context.get("resources", {}).get("metadata", {}).get("path", ""),
            exclude_anchor_links=True,
        )
        return MarkdownWithMath(renderer=renderer).render(source)

    def default_filters(self):
        """The template's filters, with ours instead of nbconvert's."""
        yield from super().default_filters()
        yield "markdown2html", self.markdown2html


def write_page(notebook: Path, page: Path) -> None:
    """Render an executed notebook file as an HTML file."""
    exporter = PageExporter(template_file="lesson.html.j2", extra_loaders=[DictLoader({"lesson.html.j2": TEMPLATE})])
    nb = readable(nbformat.read(notebook, as_version=4))
    nb.metadata["title"] = title(nb) or notebook.stem
    text, _ = exporter.from_notebook_node(nb, {"metadata": {"name": notebook.stem, "path": str(notebook.parent)}})
    page.write_text(text, encoding="utf-8")


def readable(nb: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Remove from a notebook, in place, what a page does not need: widget state, an empty set-up cell."""
    nb.metadata.pop("widgets", None)
    nb.cells = [cell for cell in nb.cells if cell.get("id") != SETUP_ID or cell.outputs]
    return nb


def title(nb: nbformat.NotebookNode) -> str:
    """The first heading of a notebook, without the hash."""
    text = "\n".join(cell.source for cell in nb.cells if cell.cell_type == "markdown")
    found = re.search(r"^# +(.+)", text, flags=re.M)
    return found.group(1).strip() if found else ""


INDEX = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>Lessons</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 50em; margin: 2em auto; padding: 0 1em; }}
table {{ border-collapse: collapse; width: 100%; }}
th, td {{ text-align: left; padding: .4em .8em; border-bottom: 1px solid #ddd; vertical-align: top; }}
td:last-child {{ text-align: right; white-space: nowrap; }}
</style></head><body>
<h1>Lessons, executed on this machine</h1>
<p><a href="scorecard.html">Scorecard</a>: what was predicted, what was measured.</p>
<table><tr><th>Lesson</th><th>Status</th><th>Time</th></tr>
{rows}
</table></body></html>
"""


def index(results) -> str:
    """The page that links lessons and scorecard. results: runner.Result, in course order."""
    rows = []
    for result in results:
        name = html.escape(title(result.lesson.read()) or result.lesson.name)
        status = f"failed in {html.escape(result.failure)}" if result.failure else "ok"
        link = f'<a href="{result.lesson.name}.html">{name}</a>'
        rows.append(f"<tr><td>{link}</td><td>{status}</td><td>{result.seconds:.0f} s</td></tr>")
    return INDEX.format(rows="\n".join(rows))
