"""`lessons`: execute the lessons again and store what is worth keeping of their outputs in notebooks/."""

from __future__ import annotations

from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from lessons_lib.course import colab, readme
from lessons_lib.course.lessons import QUIET, Lesson, find, select
from lessons_lib.measure import machine
from lessons_lib.progress import line, start_storing

KERNEL = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
DROPPED = ("application/vnd.jupyter.widget-view+json", "image/svg+xml", "application/javascript")


def store(asked: list[str], lessons: list[Lesson] | None = None) -> int:
    """Execute the lessons asked for with their own defaults and overwrite them; returns the exit status.

    A lesson that fails keeps its old outputs, and so does one whose turn comes while other programs load the machine:
    its times would mislead every reader. UsageError for a lesson that does not exist; ValueError as `readme.fill`.
    """
    start_storing()
    chosen = select(find() if lessons is None else lessons, asked)
    failed = [lesson.name for lesson in chosen if not again(lesson)]
    readme.fill()
    if failed:
        print(f"failed, and left as they were: {', '.join(failed)}")
    return int(bool(failed))


def again(lesson: Lesson) -> bool:
    """Execute one lesson in place, unless other programs load the machine; whether that went well."""
    nb = lesson.read()
    colab.refresh(nb, lesson.name, colab.address())
    with line(lesson.name) as said:
        if warning := machine.wait_until_quiet():
            said[0] = f"FAILED: {warning}"
            return False
        try:
            resources = {"metadata": {"path": str(lesson.path.parent)}}
            client = NotebookClient(nb, timeout=None, kernel_name="python3", resources=resources, record_timing=False)
            client.extra_arguments = QUIET
            client.execute()
        except CellExecutionError as error:
            said[0] = f"FAILED: {error.ename}: {error.evalue}"
            return False
        write(tidy(nb), lesson.path)
    return True


def tidy(nb: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Remove, in place, what differs from run to run or machine to machine without saying anything."""
    nb.nbformat_minor = 5
    nb.metadata = nbformat.from_dict({"kernelspec": KERNEL, "language_info": {"name": "python"}})
    for cell in nb.cells:
        cell.metadata = nbformat.from_dict(kept(cell.metadata))
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if keeps(output)]
    return nb


def kept(metadata: dict) -> dict:
    """Of a cell's metadata what its author chose: its tags, and that its code is collapsed."""
    chosen = {"tags": metadata["tags"]} if metadata.get("tags") else {}
    if metadata.get("jupyter", {}).get("source_hidden"):
        chosen["jupyter"] = {"source_hidden": True}
    return chosen


def keeps(output: nbformat.NotebookNode) -> bool:
    """Whether an output is stored, after its dropped forms are taken out: one without others goes as a whole."""
    if output.output_type == "stream":
        return output.name == "stdout"
    data = output.get("data", {})
    unwanted = "application/vnd.jupyter.widget-view+json" in data
    for mime in DROPPED:
        data.pop(mime, None)
    return bool(data) and not (unwanted and set(data) == {"text/plain"})


def write(nb: nbformat.NotebookNode, path: Path) -> None:
    """Write a notebook in the one form that its file has: indent 1, sorted keys, one newline at the end."""
    text = nbformat.writes(nb).rstrip("\n") + "\n"
    path.write_text(text, encoding="utf-8", newline="\n")
