"""JupyterLab on a free port of this machine, on copies of lessons, and the Chromium that looks at it."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nbformat
import requests
from papermill.iorw import load_notebook_node
from papermill.parameterize import parameterize_notebook

from lessons_lib.course.lessons import Lesson
from lessons_lib.measure.clock import QUICK
from lessons_lib.progress import VARIABLE

PATIENCE = 300  # seconds for JupyterLab to start
CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--no-sandbox",  # root, as in a container, may not make one; only this machine's own pages are opened
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
# JupyterLab draws only the cells in sight unless told; and its news would be a request to elsewhere
SETTINGS = {
    "page_config.json": {"disabledExtensions": {"@jupyterlab/apputils-extension:announcements": True}},
    "default_setting_overrides.json": {"@jupyterlab/notebook-extension:tracker": {"windowingMode": "none"}},
}


def find_chromium() -> str | None:
    """The path of an installed Chromium or Chrome; None without one."""
    return next((path for name in CHROMIUM if (path := shutil.which(name))), None)


def copy(lesson: Lesson, values: dict[str, Any], folder: Path) -> Path:
    """The lesson without outputs, with these parameters injected as `run` does it, as a file in folder."""
    nb = load_notebook_node(str(lesson.path))
    for cell in nb.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    nb = parameterize_notebook(nb, values) if values else nb
    folder.mkdir(parents=True, exist_ok=True)
    nbformat.write(nb, folder / lesson.path.name)
    return folder / lesson.path.name


@contextmanager
def jupyter_lab(home: Path, notebooks: Path) -> Iterator[dict[str, Any]]:
    """A running JupyterLab with no settings but its own, in home; gives what it says of itself: url, token, ..."""
    shutil.rmtree(home, ignore_errors=True)
    places = {name: home / name for name in ("config", "data", "runtime", "workspaces", "settings")}
    for name, content in SETTINGS.items():
        path = places["config"] / "labconfig" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content), encoding="utf-8")
    with (home / "lab.log").open("w", encoding="utf-8") as log:
        server = subprocess.Popen(command(notebooks), env=environment(places), stdout=log, stderr=subprocess.STDOUT)
        try:
            yield announced(server, places["runtime"], home / "lab.log")
        finally:
            server.terminate()
            server.wait(60)


def command(notebooks: Path) -> list[str]:
    """How JupyterLab is started: any free port of the loopback interface, nothing opened by itself."""
    options = ("--no-browser", "--allow-root", "--ip=127.0.0.1", "--port=0", f"--ServerApp.root_dir={notebooks}")
    return [sys.executable, "-m", "jupyter", "lab", *options]


def environment(places: dict[str, Path]) -> dict[str, str]:
    """This process's environment with Jupyter's folders moved, someone there for sliders, everything timed once."""
    own = {f"JUPYTER_{name.upper()}_DIR": str(places[name]) for name in ("config", "data", "runtime")}
    own |= {f"JUPYTERLAB_{name.upper()}_DIR": str(places[name]) for name in ("workspaces", "settings")}
    return {name: value for name, value in os.environ.items() if name != VARIABLE} | own | {QUICK: "1"}


def announced(server: subprocess.Popen, runtime: Path, log: Path) -> dict[str, Any]:
    """What the server writes into its runtime folder once it listens. AssertionError with its log if it does not."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end and server.poll() is None:
        for path in runtime.glob("jpserver-*.json"):
            try:
                return json.loads(path.read_text(encoding="utf-8"))
            except ValueError:  # still being written
                pass
        time.sleep(0.2)
    raise AssertionError(f"JupyterLab did not start:\n{log.read_text(encoding='utf-8')}")


def stop_kernels(lab: dict[str, Any]) -> None:
    """End all kernels of a lab, so that one lesson's models are gone before the next begins."""
    headers, kernels = {"Authorization": f"token {lab['token']}"}, f"{lab['url']}api/kernels"
    for kernel in requests.get(kernels, headers=headers, timeout=60).json():
        requests.delete(f"{kernels}/{kernel['id']}", headers=headers, timeout=60)
