"""Sphinx settings for the course as pages: `make site`, or `sphinx-build -W docs build/site`.

MyST-NB shows the lessons as they are stored, without executing them. Nothing on a page is loaded from elsewhere:
formulas become MathML, and figures are files with their alt text.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import shutil
from pathlib import Path

import nbformat
from docutils import nodes
from nbformat.v4 import new_markdown_cell, new_output
from sphinx.util import logging

from lessons_lib.course import render
from lessons_lib.course.lessons import CLAIMS, NOTEBOOKS, find
from lessons_lib.measure import results
from lessons_lib.paths import ROOT

project = html_title = "Faster language models"
extensions = ["myst_nb", "sphinxcontrib.bibtex"]
exclude_patterns = ["lessons/notebooks"]
myst_heading_anchors = 2
myst_enable_extensions = ["amsmath", "attrs_inline", "colon_fence", "dollarmath", "html_image"]
nb_execution_mode = "off"
nb_render_markdown_format = "myst"
nb_merge_streams = True
bibtex_bibfiles = ["references.bib"]
bibtex_default_style = "plain"
html_theme = "furo"
html_static_path = ["style.css"]
html_css_files = ["style.css"]
html_favicon = "icon.svg"
html_math_renderer = "mathml"
html_show_sourcelink = html_copy_source = html_show_copyright = False

log = logging.getLogger(__name__)
OF_REPOSITORY = re.compile(
    r"\[([^\]]*)\]\((?:\.\./)?((?:notebooks|bench|lessons_lib)/[^)# ]*|RESULTS\.md|Makefile)([^)]*)\)"
)
PUNCTUATION = re.compile(r"[!-/:-@\[-`{-~]")


def setup(app) -> None:
    """Called by Sphinx before it reads anything."""
    app.add_config_value("lessons_folder", str(NOTEBOOKS), "env")
    app.connect("config-inited", lambda app, config: write_lessons(Path(config.lessons_folder), Path(app.srcdir)))
    app.connect("source-read", link_within_site)
    app.add_html_math_renderer("mathml", (inline_math, None), (display_math, None))


def write_lessons(notebooks: Path, docs: Path) -> None:
    """Write docs/lessons anew: the lessons as MyST-NB reads them, their pictures, the scorecard, and RESULTS.md."""
    folder, lessons = docs / "lessons", find(notebooks)
    shutil.rmtree(folder, ignore_errors=True)
    for name in ("figures", "notebooks"):
        (folder / name).mkdir(parents=True)
    for lesson in lessons:
        shutil.copy(lesson.path, folder / "notebooks")
        nb = render.readable(lesson.read())
        for cell in nb.cells:
            put_pictures_in_files(cell, folder)
            cell.source = cell.source.replace("](../RESULTS.md", "](results.md")
        nb.cells.insert(1, new_markdown_cell(f"{{download}}`This lesson as a notebook <notebooks/{lesson.path.name}>`"))
        nbformat.write(nb, folder / lesson.path.name)
    scores = results.collect([lesson.path for lesson in lessons])
    results.write_scorecard(scores, folder, claims=results.load(CLAIMS))
    shutil.copy(ROOT / "RESULTS.md", folder / "results.md")


def link_within_site(app, page: str, source: list[str]) -> None:
    """Turn a page's links to files of the repository into links within the site.

    Lessons and results are pages. Other files become downloads, and what the site lacks plain text.
    """
    if page.startswith("lessons/") and page != "lessons/results":
        return
    docs = Path(app.srcdir)

    def link(found: re.Match) -> str:
        text, path, rest = found.groups()
        if path == "RESULTS.md":
            return f"[{text}](/lessons/results.md{rest})"
        if path.startswith("notebooks/"):
            name = Path(path).name
            return f"[{text}](/lessons/{name}{rest})" if (docs / "lessons" / name).exists() else text
        if path.endswith(".md"):
            return text
        return f"[{text}](<{os.path.relpath(ROOT / path, (docs / page).parent)}{rest}>)"  # <>: a path may have spaces

    source[0] = OF_REPOSITORY.sub(link, source[0])


def put_pictures_in_files(cell: nbformat.NotebookNode, folder: Path) -> None:
    """Replace a cell's attached pictures and its outputs' figures by files, in place."""
    for name, picture in cell.pop("attachments", {}).items():
        (folder / "figures" / name).write_bytes(base64.b64decode(picture["image/png"]))
        cell.source = cell.source.replace(f"(attachment:{name})", f"(figures/{name}){{width=704px}}")
    if cell.cell_type == "code":
        cell.outputs = [shown(output, folder) for output in cell.outputs]


def shown(output: nbformat.NotebookNode, folder: Path) -> nbformat.NotebookNode:
    """An output without what a page cannot show, and a picture as a file with its alt text and width."""
    data = output.get("data", {})
    data.pop(results.MIME, None)
    if "image/png" not in data:
        return output
    about, image = output.metadata.get("image/png", {}), base64.b64decode(data["image/png"])
    path = folder / "figures" / f"{hashlib.sha256(image).hexdigest()[:12]}.png"
    path.write_bytes(image)
    alt = PUNCTUATION.sub(r"\\\g<0>", " ".join(about.get("alt", "").split()))
    width = f"{{width={about['width']}px}}" if "width" in about else ""
    return new_output("display_data", {"text/markdown": f"![{alt}](figures/{path.name}){width}"})


def inline_math(translator, node) -> None:
    """A formula within a line."""
    write_math(translator, node, "inline")


def display_math(translator, node) -> None:
    """A formula of its own, which scrolls sideways on a narrow screen."""
    translator.body.append('<div class="formula" tabindex="0">')
    write_math(translator, node, "block", after="</div>")


def write_math(translator, node, display: str, after: str = "") -> None:
    """Write MathML, or the formula as it stands with a warning; SkipNode tells docutils that nothing is left to do."""
    if render.mathml(node.astext(), display) is None:
        log.warning("a formula that cannot be rendered: %s", node.astext(), location=node)
    translator.body.append(render.math(node.astext(), display) + after)
    raise nodes.SkipNode
