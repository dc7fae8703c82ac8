"""The house rules for stored lessons: what makes them run elsewhere, compare well and read well."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import nbformat

from . import colab, render
from .lessons import Lesson, UsageError, find, parameters

REQUIRED = {"model", "device", "dtype", "seed"}
LINE = 120  # characters of a line of code that a reader sees
LONG_LINES = (  # lessons that are not checked for it: take a name out when its lesson is rewritten
    "00_roofline", "01_prefill_decode", "02_kv_cache", "03_static_cache_compile", "04_attention_kernels",
    "05_continuous_batching", "06_assisted_decoding", "07_prompt_lookup", "08_jacobi_lookahead", "09_medusa",
    "10_quantization", "11_ladder", "12_effective_sparsity",
)  # fmt: skip
ABSOLUTE = re.compile(r"(?<![\w.:/<])/(?:home|root|tmp|work|usr|opt|var|mnt|Users)/[\w.-]+|\b[A-Z]:\\\\?\w")
NO_ALT = re.compile(r"!\[\s*\]\(|<img(?![^>]*\balt=\"[^\"])")


def problems(nb: nbformat.NotebookNode, name: str, address: str | None = None) -> list[str]:
    """What a lesson called `name` (02_kv_cache) breaks, one sentence each. address: of the repository."""
    address = colab.address() if address is None else address
    code = [cell for cell in nb.cells if cell.cell_type == "code"]
    rules = (
        of_format(nb),
        of_parameters(nb),
        of_colab(nb, name, address),
        of_text(nb),
        of_outputs(code),
        [] if name in LONG_LINES else of_lines(code),
    )
    return [f"{name}: {problem}" for rule in rules for problem in rule]


def lint(lessons: list[Lesson] | None = None) -> list[str]:
    """The problems of all lessons in notebooks/."""
    return [p for lesson in (find() if lessons is None else lessons) for p in problems(lesson.read(), lesson.name)]


def of_format(nb: nbformat.NotebookNode) -> Iterator[str]:
    """Format, kernel, and metadata that tools leave behind."""
    if (nb.nbformat, nb.nbformat_minor) != (4, 5) or not all(cell.get("id") for cell in nb.cells):
        yield "is not nbformat 4.5 with cell ids"
    if nb.metadata.get("kernelspec", {}).get("name") != "python3":
        yield "its kernelspec is not python3"
    for left in {"widgets", "papermill"} & set(nb.metadata):
        yield f"metadata of {left} is kept"


def of_parameters(nb: nbformat.NotebookNode) -> Iterator[str]:
    """One cell of literals, with the names that every lesson has."""
    try:
        missing = REQUIRED - set(parameters(nb))
    except UsageError as error:
        yield str(error)
        return
    if missing:
        yield f"its parameters lack {', '.join(sorted(missing))}"


def of_colab(nb: nbformat.NotebookNode, name: str, address: str) -> Iterator[str]:
    """The generated set-up cell first, and the link that belongs to the address."""
    sources = [cell.source for cell in nb.cells if cell.cell_type == "code"]
    if sources[:1] != [colab.setup_cell(address)]:
        yield "its first code cell is not the generated set-up cell; `make lessons` writes it"
    links = [cell.source for cell in nb.cells if cell.get("id") == colab.LINK_ID]
    if links != [text for text in [colab.link(address, name)] if text]:
        yield "its Colab link does not follow from the repository's address; `make lessons` writes it"


def of_text(nb: nbformat.NotebookNode) -> Iterator[str]:
    """Nothing that holds on one machine only, and no picture without words."""
    for cell in nb.cells:
        found = ABSOLUTE.search(cell.source + json.dumps(cell.get("outputs", []), ensure_ascii=False))
        if found:
            yield f"has an absolute path: {found.group()}"
        if cell.cell_type != "markdown":
            continue
        for latex in render.unreadable(cell.source):
            yield f"has a formula that cannot be rendered: {latex}"
        if NO_ALT.search(cell.source):
            yield "has a picture without alt text"


def of_outputs(code: list[nbformat.NotebookNode]) -> Iterator[str]:
    """Executed once from top to bottom, and outputs that nbval can compare and a page can show."""
    counts = [cell.execution_count for cell in code if cell.source.strip()]
    if counts != list(range(1, len(counts) + 1)):
        yield "was not executed from top to bottom"
    for output in (output for cell in code for output in cell.outputs):
        data = output.get("data", {})
        if output.output_type == "error":
            yield f"keeps an error: {output.ename}"
        if output.output_type == "stream" and output.name == "stderr":
            yield f"keeps a warning: {output.text.strip()[:60]}"
        for mime in {"image/svg+xml", "application/vnd.jupyter.widget-view+json"} & set(data):
            yield f"keeps an output of type {mime}"
        if "image/png" in data and not output.metadata.get("image/png", {}).get("alt"):
            yield "has a figure without alt text; lessons_lib.figures.display takes one"


def of_lines(code: list[nbformat.NotebookNode]) -> Iterator[str]:
    """No line that a reader has to scroll along. Collapsed cells may have them."""
    for line in (line for cell in code if not collapsed(cell) for line in cell.source.splitlines()):
        if len(line) > LINE:
            yield f"has a line of {len(line)} characters, {LINE} at most: {line.strip()[:40]}..."


def collapsed(cell: nbformat.NotebookNode) -> bool:
    """Whether JupyterLab or the site shows a cell's outputs and hides its code."""
    return cell.metadata.get("jupyter", {}).get("source_hidden", False) or "hide-input" in cell.metadata.get("tags", [])
