"""Trains and evaluates smol-layerskip: `python -m bench.train_layerskip --out FOLDER`, minutes on a GPU.

run      what it does
-------  -----------------------------------------------------------------------------------
base     evaluates every exit of the model without adapters
default  LoRA with layer dropout and early-exit loss on text-to-SQL; evaluates it
control  the same steps on the same texts without dropout and early exits; evaluates it
exit     an adapter for exit 10 of the unchanged model; evaluates it

The runs are parallel processes. Each can be interrupted: called again, it goes on from its last checkpoint in the cache
folder. A run is evaluated once its training has come to its end. FOLDER gets a JSON file per run, and all adapters.
`python -m lessons_lib.training layerskip-export` with `--results FOLDER` then stores the weights. With `--tiny` all
runs take three steps; give it a cache folder of its own (LESSONS_LIB_CACHE).
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter, sleep

from lessons_lib.models import load
from lessons_lib.models.exits import LAYERSKIP
from lessons_lib.progress import VARIABLE, say
from lessons_lib.training.__main__ import EXIT
from lessons_lib.training.__main__ import main as training
from lessons_lib.training.loop import CURVE, folder_of

CONTROL = ["--p_max", "0", "--curriculum", "last"]
RUNS = ("default", "control", "exit", "base")


def main(arguments: Sequence[str] | None = None) -> int:
    """Train and evaluate the named runs (default: RUNS), in parallel; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m bench.train_layerskip")
    parser.add_argument("runs", nargs="*", metavar="RUN", help=f"of {', '.join(RUNS)}; default: all")
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--device", default="auto", help="cpu, cuda or auto")
    parser.add_argument("--minutes", help="stop each training after so long, with a checkpoint to go on from")
    parser.add_argument("--tiny", action="store_true", help="a few steps, to try the script")
    parser.add_argument("--here", action="store_true", help="one after the other in this process")
    options = parser.parse_args(arguments)
    if unknown := [run for run in options.runs if run not in RUNS]:
        parser.error(f"{', '.join(unknown)}: no run; there are {', '.join(RUNS)}")
    runs = options.runs or list(RUNS)
    if options.here:
        statuses = (training(command) for run in runs for command in commands(run, options))
        return next(filter(None, statuses), 0)  # what comes after a command that was stopped or refused is not run
    load(device="cpu")  # converts the model once, before several processes need it
    return parallel(runs, options)


def commands(run: str, options: argparse.Namespace) -> list[list[str]]:
    """The training commands of a run."""
    where = ["--device", options.device, "--run", run]
    results = ["--results", str(options.out)]
    few = ["--steps", "3", "--tokens", "300"] if options.tiny else []
    few += ["--minutes", options.minutes] if options.minutes else []
    if run == "exit":
        if options.tiny:
            few += ["--prompts", "24", "--copies", "1"]
        return [["layerskip-exit", *where, *few], ["layerskip-exit-evaluate", *where, *results]]
    evaluate = ["layerskip-evaluate", *where, *results, *(["--texts", "8"] if options.tiny else [])]
    if run == "base":
        return [evaluate]
    return [["layerskip", *where, *few, *(CONTROL if run == "control" else [])], evaluate]


def parallel(runs: Sequence[str], options: argparse.Namespace) -> int:
    """Start a process per run, print their progress, and return the highest exit status."""
    shared = ["--here", "--out", str(options.out), "--device", options.device, *(["--tiny"] if options.tiny else [])]
    shared += ["--minutes", options.minutes] if options.minutes else []
    environment, since = os.environ | {VARIABLE: "1"}, perf_counter()
    command = [sys.executable, "-m", "bench.train_layerskip"]
    processes = {run: subprocess.Popen([*command, run, *shared], env=environment) for run in runs}
    shown = dict.fromkeys(runs, "")
    while any(process.poll() is None for process in processes.values()):
        sleep(1)
        for run, process in processes.items():
            now = "ended" if process.poll() is not None else progress(run)
            if now != shown[run]:
                shown[run] = now
                say(f"{perf_counter() - since:4.0f} s  {run}: {now}")
    status = {run: process.returncode for run, process in processes.items()}
    say(f"{perf_counter() - since:4.0f} s  exit statuses: {status}")
    return max(map(abs, status.values()))


def progress(run: str) -> str:
    """The last row of a run's curve."""
    path = folder_of(EXIT if run == "exit" else LAYERSKIP, run) / CURVE
    try:
        return str(json.loads(path.read_text())[-1])
    except (OSError, ValueError, IndexError):
        return "no checkpoint yet"


if __name__ == "__main__":
    sys.exit(main())
