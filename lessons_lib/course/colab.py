"""A lesson alone on Colab: the generated cell that installs lessons_lib there, and the link that opens it."""

from __future__ import annotations

import tomllib
from pathlib import Path
from urllib.parse import urlparse

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell

from lessons_lib.paths import ROOT

SETUP_ID, LINK_ID = "colab-setup", "open-in-colab"
# OpenMP's threads spin while they wait for each other, by default so long that a busy program beside them takes most of
# the speed: eager decoding falls to 39% and compiled to 29%. With 1000 turns they keep 99% and 37%, and lose 5% alone.
# An installed torch is named with its exact version, so that pip keeps it or stops. The checkout goes onto
# sys.path as well, because this process does not see an editable install.
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
{source}
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", *source, *torch], check=True)
    sys.path[:0] = home"""
FROM_ADDRESS = '    source = ["-e", home[0] + "[lessons]"] if home else ["lessons_lib[lessons] @ git+{address}"]'
UNSET = """\
    if not home:
        raise RuntimeError("lessons_lib is missing: clone the course's repository and open this lesson from there")
    source = ["-e", home[0] + "[lessons]"]"""


def address(root: Path = ROOT) -> str:
    """The repository's address, kept in pyproject.toml as project.urls.Repository; "" while it is unset."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return project.get("urls", {}).get("Repository", "")


def setup_cell(address: str) -> str:
    """Source of every lesson's first code cell; without an address it says what to do in its place."""
    return SETUP.format(source=FROM_ADDRESS.format(address=address) if address else UNSET)


def link(address: str, name: str) -> str:
    """Markdown link that opens a lesson in Colab; "" without an address on GitHub, which Colab opens."""
    parts = urlparse(address)
    if parts.netloc != "github.com":
        return ""
    repository = parts.path.strip("/").removesuffix(".git")
    return f"[Open in Colab](https://colab.research.google.com/github/{repository}/blob/main/notebooks/{name}.ipynb)"


def refresh(nb: nbformat.NotebookNode, name: str, address: str) -> None:
    """Put the generated set-up cell and link, or no link, behind a lesson's title, in place."""
    cells = [cell for cell in nb.cells if cell.get("id") not in (SETUP_ID, LINK_ID)]
    setup = new_code_cell(setup_cell(address), id=SETUP_ID)
    opening = [new_markdown_cell(link(address, name), id=LINK_ID)] if link(address, name) else []
    nb.cells = [*cells[:1], *opening, setup, *cells[1:]]
