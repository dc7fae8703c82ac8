"""Measure claims one by one: `python bench/run.py [CLAIM ...] [--quick]`, as `make bench` does.

Each claim's row goes into results/claims.json as soon as it is there, its raw samples beside it. A run that
was interrupted goes on where it stopped; one that ended starts anew.
"""

import argparse
import json
import sys
from pathlib import Path

import assisted  # noqa: F401  (each registers its claims)
import counted  # noqa: F401
import generation  # noqa: F401
import speculation  # noqa: F401
from registry import CLAIMS, Claim, Run

from lessons_lib.measure import claims, machine
from lessons_lib.progress import bar, say

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "bench" / "results"
UNFINISHED = ROOT / "build" / "bench-unfinished.json"


def main() -> int:
    options = parse()
    chosen = [name for name in CLAIMS if not options.claims or name.startswith(tuple(options.claims))]
    if not chosen:
        print(f"no claim begins with {' or '.join(options.claims)}; there are: {', '.join(CLAIMS)}", file=sys.stderr)
        return 2
    if warning := machine.load_warning(machine.load(), share=0.5):  # ours alone should be running
        say(warning)
    run, wanted = Run(options.quick), [chosen, options.quick]
    done = unfinished(wanted)
    for name in (progress := bar(chosen, desc="claims", unit="claim")):
        progress.set_postfix_str(name)
        if name not in done:
            record(CLAIMS[name], run)
            done.append(name)
            UNFINISHED.parent.mkdir(exist_ok=True)
            UNFINISHED.write_text(json.dumps({"wanted": wanted, "done": done}))
    UNFINISHED.unlink(missing_ok=True)
    print(claims.markdown([row for row in claims.load(RESULTS / "claims.json") if row.claim in chosen]))
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure named claims on this machine.")
    parser.add_argument("claims", nargs="*", help="a claim's name, or how it begins; default: all")
    parser.add_argument("--quick", action="store_true", help="fewer repeats; never overwrites a full result")
    return parser.parse_args()


def unfinished(wanted: list) -> list[str]:
    """Claims that an interrupted run of the same command has measured already."""
    if not UNFINISHED.exists():
        return []
    before = json.loads(UNFINISHED.read_text())
    if before["wanted"] != wanted:
        return []
    say(f"going on with the run that was interrupted: {len(before['done'])} claims are measured")
    return before["done"]


def record(claim: Claim, run: Run) -> None:
    """Measure one claim; its row and its raw samples are on disk when this returns."""
    measured = claim.measure(run)
    row = claims.make_row(claim.name, measured.ratio, claim.bar, claim.baseline, note=measured.note, quick=run.quick)
    machine_facts = {"host": machine.host(), "versions": machine.versions()}
    claims.update(RESULTS / "claims.json", [row], run.quick, **machine_facts)
    if not run.quick:
        ratio = measured.ratio
        raw = {"claim": claim.name, **machine_facts, "unit": "s", "a": ratio.a.times, "b": ratio.b.times}
        raw |= measured.facts or {}
        path = RESULTS / f"{claim.name.replace('/', '-')}.json"
        path.write_text(json.dumps(raw, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
