"""Execute lessons and store their outputs, as far as worth keeping, in notebooks/ (`make lessons LESSONS="02 06"`).

Each stored lesson begins with a generated cell that installs lessons_lib where it is missing and, if the repository has
an address on GitHub, with a link that opens it on Colab.
"""

from __future__ import annotations

import base64
import hashlib
import sys
import tomllib
from pathlib import Path
from urllib.parse import urlparse

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, DeadKernelError
from nbformat.v4 import new_code_cell, new_markdown_cell

from lessons_lib.course.lessons import QUIET, SETUP_ID, Lesson, UsageError, find, select
from lessons_lib.measure import machine
from lessons_lib.paths import ROOT
from lessons_lib.progress import line, start_storing

LINK_ID = "open-in-colab"
CODE = "stored_code"  # in a notebook's metadata: the fingerprint of the code that made its outputs
KERNEL = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
DROPPED = ("application/vnd.jupyter.widget-view+json", "image/svg+xml", "application/javascript")
# OpenMP's threads spin while they wait for each other; with fewer turns than by default another busy program costs them
# less speed.
# pip gets the exact version of an installed torch, so that it keeps it or stops. The clone is also added to sys.path,
# because this process does not see an editable install.
SETUP = """\
# Installs lessons_lib where it is missing, as on Colab; an installed torch stays.
import os, subprocess, sys
from importlib import metadata, util
from pathlib import Path
os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # torch's waiting threads give way to other programs
if util.find_spec("lessons_lib") is None:
    files = [folder / "pyproject.toml" for folder in (Path.cwd() / "here").parents]
    home = [str(f.parent) for f in files if f.exists() and 'name = "lessons_lib"' in f.read_text()][:1]
    torch = ["torch==" + metadata.version("torch")] if util.find_spec("torch") else []
    source = ["-e", home[0] + "[lessons]"] if home else [{elsewhere}]
    if source:
        subprocess.run([sys.executable, "-m", "pip", "install", "-q", *source, *torch], check=True)
        sys.path[:0] = home
    else:
        print("lessons_lib is missing: clone the course and open this lesson in the clone's notebooks/")"""


def main(asked: list[str]) -> int:
    """Store the selected lessons, or all; returns the exit status."""
    try:
        return store(select(find(), asked))
    except UsageError as error:
        print(error, file=sys.stderr)
        return 2


def store(lessons: list[Lesson]) -> int:
    """Execute lessons with their defaults and overwrite them; returns the exit status.

    A lesson that fails keeps its old outputs. So does one whose turn comes while other programs load the machine,
    because its times would mislead every reader.
    """
    start_storing()
    failed = [lesson.name for lesson in lessons if not again(lesson)]
    if failed:
        print(f"failed, and left as they were: {', '.join(failed)}")
    return int(bool(failed))


def again(lesson: Lesson) -> bool:
    """Execute one lesson in place, unless other programs load the machine; returns whether it succeeded."""
    # generated parts
    nb = lesson.read()
    put_setup(nb, lesson.name, address())
    put_drawings(nb)
    with line(lesson.name) as said:
        if warning := machine.wait_until_quiet():
            said[0] = f"FAILED: {warning}"
            return False
        # execute
        try:
            resources = {"metadata": {"path": str(lesson.path.parent)}}
            # coalesce_streams: text that was streamed in pieces is stored as one
            options = {"timeout": None, "resources": resources, "record_timing": False, "coalesce_streams": True}
            client = NotebookClient(nb, kernel_name="python3", **options)
            client.extra_arguments = QUIET
            client.execute()
        except CellExecutionError as error:
            said[0] = f"FAILED: {error.ename}: {error.evalue}"
            return False
        except DeadKernelError:
            said[0] = "FAILED: its kernel died, perhaps for want of memory; close other programs and store it again"
            return False
        write(tidy(nb), lesson.path)
    return True


def tidy(nb: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Remove, in place, everything that differs between runs or machines and is of no use to a reader."""
    nb.nbformat_minor = 5
    nb.metadata = nbformat.from_dict({"kernelspec": KERNEL, "language_info": {"name": "python"}, CODE: fingerprint(nb)})
    for cell in nb.cells:
        cell.metadata = nbformat.from_dict(kept(cell.metadata))
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if keeps(output)]
    return nb


def fingerprint(nb: nbformat.NotebookNode) -> str:
    """A hash of the lesson's code, without the generated set-up cell."""
    sources = [cell.source for cell in nb.cells if cell.cell_type == "code" and cell.get("id") != SETUP_ID]
    return hashlib.sha256("\0".join(sources).encode()).hexdigest()[:16]


def kept(metadata: dict) -> dict:
    """The part of a cell's metadata set by its author: its tags, and that its code is collapsed."""
    chosen = {"tags": metadata["tags"]} if metadata.get("tags") else {}
    if metadata.get("jupyter", {}).get("source_hidden"):
        chosen["jupyter"] = {"source_hidden": True}
    return chosen


def keeps(output: nbformat.NotebookNode) -> bool:
    """Drop unwanted forms of an output, in place; returns whether a form remains that is stored."""
    if output.output_type == "stream":
        return output.name == "stdout"
    data = output.get("data", {})
    unwanted = "application/vnd.jupyter.widget-view+json" in data
    for mime in DROPPED:
        data.pop(mime, None)
    return bool(data) and not (unwanted and set(data) == {"text/plain"})


def write(nb: nbformat.NotebookNode, path: Path) -> None:
    """Write a notebook in canonical form: indent 1, sorted keys, one newline at the end."""
    text = nbformat.writes(nb).rstrip("\n") + "\n"
    path.write_text(text, encoding="utf-8", newline="\n")


def address(root: Path = ROOT) -> str:
    """The repository's address, project.urls.Repository in pyproject.toml; "" while it is unset."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return project.get("urls", {}).get("Repository", "")


def setup_cell(address: str) -> str:
    """Source of every lesson's first code cell: outside a clone it installs from the address or says what to do."""
    return SETUP.format(elsewhere=f'"lessons_lib[lessons] @ git+{address}"' if address else "")


def on_github(address: str) -> str:
    """OWNER/NAME of an address on GitHub; "" for another one."""
    parts = urlparse(address)
    return parts.path.strip("/").removesuffix(".git") if parts.netloc == "github.com" else ""


def link(address: str, name: str) -> str:
    """Markdown link that opens a lesson in Colab; "" without an address on GitHub, the only site Colab opens."""
    repository = on_github(address)
    page = f"https://colab.research.google.com/github/{repository}/blob/main/notebooks/{name}.ipynb"
    return f"[Open in Colab]({page})" if repository else ""


def put_setup(nb: nbformat.NotebookNode, name: str, address: str) -> None:
    """Put the generated set-up cell and link, or no link, after a lesson's title, in place."""
    counts = [cell.execution_count for cell in nb.cells if cell.get("id") == SETUP_ID]
    cells = [cell for cell in nb.cells if cell.get("id") not in (SETUP_ID, LINK_ID)]
    collapsed = {"jupyter": {"source_hidden": True}, "tags": ["hide-input"]}
    setup = new_code_cell(
        setup_cell(address), id=SETUP_ID, execution_count=next(iter(counts), None), metadata=collapsed
    )
    opening = [new_markdown_cell(link(address, name), id=LINK_ID)] if link(address, name) else []
    nb.cells = [*cells[:1], *opening, setup, *cells[1:]]


def put_drawings(nb: nbformat.NotebookNode) -> None:
    """Attach the current drawings of imgs/ to the cells that show them, in place."""
    for cell in nb.cells:
        for name in cell.get("attachments", {}):
            cell.attachments[name] = {"image/png": base64.b64encode((ROOT / "imgs" / name).read_bytes()).decode()}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
