"""Check the code with ruff, import-linter and vulture, and the stored lessons against the house rules.

The house rules ensure that a lesson runs elsewhere, compares well with nbval and reads well on a page.
"""

from __future__ import annotations

import ast
import builtins
import copy
import importlib.util
import json
import keyword
import re
import shutil
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import nbformat

from lessons_lib.course import render
from lessons_lib.course.lessons import Lesson, UsageError, find, parameters
from lessons_lib.paths import ROOT
from tools import store

SCRIPTS = ROOT / "build" / "lint"  # the lessons' code, for tools that read no notebooks
# vulture counts what `__all__` names as used; without this method it does not
VULTURE = ["-c", "from vulture import core; del core.Vulture.visit_Assign; core.main()"]
TOOLS = (  # configured in pyproject.toml
    ["-m", "ruff", "check", "--quiet"],
    ["-c", "from importlinter.cli import lint_imports; exit(lint_imports(no_cache=True, no_logo=True))"],
    [*VULTURE, "lessons_lib", "bench", "tools", SCRIPTS],  # code that only tests use counts as unused
    [*VULTURE, "lessons_lib", "bench", "tools", "tests", SCRIPTS],
)
REQUIRED = {"model", "device", "dtype", "seed"}
LINE = 100  # longest line of visible code, in characters
ABSOLUTE = re.compile(r"(?<![\w.:/<])/(?:home|root|tmp|work|usr|opt|var|mnt|Users)/[\w.-]+|\b[A-Z]:\\\\?\w")
INLINE = re.compile(r"`([^`\n]+)`")
IDENTIFIER = re.compile(r"\b[A-Za-z_]\w*")
ELSEWHERE = set(  # names in lessons' texts that belong to torch, transformers, vLLM, a file or a token
    "TORCH_LOGS recompiles set_stance fail_on_recompile mark_static_address sdp_utils flex_attention _3 _4 "
    "flash_attention_2 attn_implementation causal_lower_right autotune avx2 im_start".split()
)
NO_ALT = re.compile(r"!\[\s*\]\(|<img(?![^>]*\balt=\"[^\"])")


def main() -> int:
    """Print every problem; returns the exit status."""
    write_scripts(SCRIPTS)
    found = [complaint([sys.executable, *map(str, arguments)]) for arguments in TOOLS]
    found = [*filter(None, found), *(problem for lesson in find() for problem in problems(lesson))]
    print("\n".join(found), end="\n" if found else "", file=sys.stderr)
    return int(any(found))


def write_scripts(folder: Path) -> None:
    """Write the code of each lesson as a script into a fresh folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for lesson in find():
        code = [cell.source for cell in lesson.read().cells if cell.cell_type == "code"]
        (folder / f"{lesson.name}.py").write_text("\n".join(code), encoding="utf-8")


def complaint(call: list[str]) -> str:
    """Output of a program that fails; "" if it succeeds."""
    done = subprocess.run(call, cwd=ROOT, text=True, encoding="utf-8", stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return done.stdout.strip() or f"{call} failed" if done.returncode else ""


def problems(lesson: Lesson) -> list[str]:
    """The house rules that a stored lesson breaks, one sentence each."""
    nb, name, address = lesson.read(), lesson.name, store.address()
    code = [cell for cell in nb.cells if cell.cell_type == "code"]
    rules = (
        of_format(nb),
        of_parameters(lesson),
        of_setup(nb, name, address),
        of_drawings(nb),
        of_text(nb),
        of_imports(code),
        of_identifiers(nb),
        of_stored_code(nb),
        of_outputs(code),
        of_lines(code),
    )
    return [f"{name}: {problem}" for rule in rules for problem in rule]


def of_format(nb: nbformat.NotebookNode) -> Iterator[str]:
    """Notebook format, kernel, and metadata left there by tools."""
    if (nb.nbformat, nb.nbformat_minor) != (4, 5) or not all(cell.get("id") for cell in nb.cells):
        yield "is not nbformat 4.5 with cell ids"
    if nb.metadata.get("kernelspec", {}).get("name") != "python3":
        yield "its kernelspec is not python3"
    for left in {"widgets", "papermill"} & set(nb.metadata):
        yield f"metadata of {left} is kept"


def of_parameters(lesson: Lesson) -> Iterator[str]:
    """One parameters cell of literals, with the names that every lesson has."""
    try:
        missing = REQUIRED - set(parameters(lesson))
    except UsageError as error:
        yield str(error)
        return
    if missing:
        yield f"its parameters lack {', '.join(sorted(missing))}"


def of_setup(nb: nbformat.NotebookNode, name: str, address: str) -> Iterator[str]:
    """The generated set-up cell first, and the Colab link for the repository's address."""
    sources = [cell.source for cell in nb.cells if cell.cell_type == "code"]
    if sources[:1] != [store.setup_cell(address)]:
        yield "its first code cell is not the generated set-up cell; `make lessons` writes it"
    links = [cell.source for cell in nb.cells if cell.get("id") == store.LINK_ID]
    if links != [text for text in [store.link(address, name)] if text]:
        yield "its Colab link does not follow from the repository's address; `make lessons` writes it"


def of_drawings(nb: nbformat.NotebookNode) -> Iterator[str]:
    """Attached drawings equal those in imgs/."""
    current = copy.deepcopy(nb)
    store.put_drawings(current)
    if nb != current:
        yield "has another drawing than imgs/; `make lessons` puts it there"


def of_text(nb: nbformat.NotebookNode) -> Iterator[str]:
    """Nothing that is valid on one machine only, and no picture without alt text."""
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


def of_imports(code: list[nbformat.NotebookNode]) -> Iterator[str]:
    """Lessons import from packages, and from the modules of course/ and of the library's top level."""
    tree = ast.parse("\n".join(cell.source for cell in code))
    for name in sorted({node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}):
        ours, package, *deeper = *name.split("."), "", ""
        if ours == "lessons_lib" and package != "course" and any(deeper):
            found = importlib.util.find_spec(name)
            if found is None or found.submodule_search_locations is None:
                yield f"imports from {name}, which is no package; import from the package above it"


def of_identifiers(nb: nbformat.NotebookNode) -> Iterator[str]:
    """Every identifier in backticks exists: in the lesson, in the library, benches or tools, or it is of ELSEWHERE."""
    own = {name for cell in nb.cells if cell.cell_type == "code" for name in IDENTIFIER.findall(cell.source)}
    for cell in nb.cells:
        if cell.cell_type == "markdown":
            text = re.sub(r"^ *```.*?^ *```", "", cell.source, flags=re.DOTALL | re.MULTILINE)
            named = {name for span in INLINE.findall(text) for name in IDENTIFIER.findall(span)}
            if unknown := named - own - identifiers():
                yield f"names {', '.join(sorted(unknown))}, which neither its code nor the library has"


@cache
def identifiers() -> set[str]:
    """All names in the code of library, benches and tools, and in their strings without blanks, such as options."""
    found = {*keyword.kwlist, *dir(builtins), *ELSEWHERE}
    for path in (path for folder in ("lessons_lib", "bench", "tools") for path in (ROOT / folder).rglob("*.py")):
        with path.open("rb") as file:
            for token in tokenize.tokenize(file.readline):
                if token.type == tokenize.NAME or (
                    token.type == tokenize.STRING and not re.search(r"\s", token.string)
                ):
                    found.update(IDENTIFIER.findall(token.string))
    return found


def of_stored_code(nb: nbformat.NotebookNode) -> Iterator[str]:
    """The outputs come from this code."""
    if nb.metadata.get(store.CODE) != store.fingerprint(nb):
        yield "its code changed after its outputs were stored; `make lessons` executes it again"


def of_outputs(code: list[nbformat.NotebookNode]) -> Iterator[str]:
    """Executed once from top to bottom, with outputs that nbval can compare and a page can show."""
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
            yield "has a figure without alt text; lessons_lib.course.display.display takes one"


def of_lines(code: list[nbformat.NotebookNode]) -> Iterator[str]:
    """No visible line that needs horizontal scrolling; collapsed cells may have them."""
    for line in (line for cell in code if not collapsed(cell) for line in cell.source.splitlines()):
        if len(line) > LINE:
            yield f"has a line of {len(line)} characters, {LINE} at most: {line.strip()[:40]}..."


def collapsed(cell: nbformat.NotebookNode) -> bool:
    """Whether JupyterLab or the site hides a cell's code and shows its outputs."""
    return cell.metadata.get("jupyter", {}).get("source_hidden", False) or "hide-input" in cell.metadata.get("tags", [])


if __name__ == "__main__":
    sys.exit(main())
