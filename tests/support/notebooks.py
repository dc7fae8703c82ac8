"""Small lessons to execute, store, check and show."""

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from tools import store

PARAMETERS = """model: str = "tiny"
device: str = "auto"
dtype: str = "auto"
seed: int = 0
tokens: int = 3
rate: float = 0.5"""


def notebook(*sources: str, title: str = "# 00 A lesson\n\nHow much is it?", **more) -> nbformat.NotebookNode:
    """A lesson that keeps the house rules: title, set-up cell, parameters and `more`, then cells with these sources."""
    nb = new_notebook(metadata={"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}})
    parameters = "\n".join([PARAMETERS, *(f"{name} = {value!r}" for name, value in more.items())])
    tagged = new_code_cell(parameters, metadata={"tags": ["parameters"]})
    nb.cells = [new_markdown_cell(title), tagged, *(new_code_cell(source) for source in sources)]
    store.put_setup(nb, "00_a_lesson", "")
    for count, cell in enumerate((c for c in nb.cells if c.cell_type == "code"), start=1):
        cell.execution_count = count
    return nb
