"""Trains and evaluates smol-layerskip: `python -m bench.train_layerskip --out FOLDER`, minutes on a GPU.

run      what it does
-------  -----------------------------------------------------------------------------------
base     evaluates every exit of the model without adapters
default  LoRA with layer dropout and early-exit loss on text-to-SQL; evaluates it
control  the same steps on the same texts without dropout and early exits; evaluates it
exit     an adapter for exit 10 of the unchanged model; evaluates it

Each run can be interrupted: called again, it goes on from its last checkpoint in the cache folder. A run is evaluated
once its training has come to its end. FOLDER gets a JSON file per run, and all adapters.
`python -m lessons_lib.training layerskip-export` with `--results FOLDER` then stores the weights.
"""

import argparse
import sys
from collections.abc import Sequence

from lessons_lib.training.__main__ import main as training

RUNS = {
    "base": [["layerskip-evaluate"]],
    "default": [["layerskip"], ["layerskip-evaluate"]],
    "control": [["layerskip", "--p_max", "0", "--curriculum", "last"], ["layerskip-evaluate"]],
    "exit": [["layerskip-exit"], ["layerskip-exit-evaluate"]],
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Train and evaluate the named runs (default: all), one after the other; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m bench.train_layerskip")
    parser.add_argument("runs", nargs="*", metavar="RUN", help=f"of {', '.join(RUNS)}; default: all")
    parser.add_argument("--out", required=True, help="folder of the results")
    parser.add_argument("--device", default="auto", help="cpu, cuda or auto")
    options = parser.parse_args(arguments)
    if unknown := [run for run in options.runs if run not in RUNS]:
        parser.error(f"{', '.join(unknown)}: no run; there are {', '.join(RUNS)}")
    for run in options.runs or RUNS:
        for part, *settings in RUNS[run]:
            settings += ["--results", options.out] if part.endswith("evaluate") else []
            if status := training([part, "--run", run, "--device", options.device, *settings]):
                return status
    return 0


if __name__ == "__main__":
    sys.exit(main())
