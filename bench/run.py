"""Measure claims one by one: `python -m bench.run [CLAIM ...] [--quick] [--questions FILE]`, as `make bench` does.

Each claim's row is written to results/claims.json as soon as it is measured, with its raw samples beside it. An
interrupted run continues with the claim at which it stopped; a finished one starts anew. With another file's questions,
only claims that use questions are measured, and the results go to build/bench/, under the file's name and a key of its
content: the stored rows are about our own questions.

module          what it holds
--------------  ------------------------------------------------------------------------------------------------
common          claims by name, runs and measurements, the model, ratios with intervals
questions       methods in alternation on each question, sums over questions, and notes
decoding        claims of lessons 01-03: loop, cache, decoder; run by itself: the static caches of transformers
serving         claims of lesson 05: the engine against others (vllm, vllm_worker), the simulator
assisted        claims of lesson 06: a draft model
prompt_lookup   claims of lesson 07
lookahead       the claim of lesson 08
medusa          claims of lesson 09, and the choice of Medusa's tree for a target
layerskip       claims of lesson 13: early exits, and the choice of exit layer and draft length
quantization    claims of lesson 10: speed and quality of quantized decoders
ladder          claims of lesson 11: every configuration in turn, and llama.cpp
streaming       claims of lesson 16; run by itself: the loss along long texts, for the lesson's figures
on_gpu          steps, ladder, attention, engine and lessons on a GPU; run separately
serve_trial     a thousand requests against `lessons serve`; run separately
train_layerskip the training of smol-layerskip; run separately
"""

import argparse
import hashlib
import json
import sys
from importlib import import_module
from pathlib import Path

from bench.common import CLAIMS, Claim, Measured, NotMeasured, Run
from lessons_lib.data import questions
from lessons_lib.measure import machine
from lessons_lib.measure.results import claim_table, load, make_claim, update
from lessons_lib.paths import ROOT, write_whole
from lessons_lib.progress import bar, say

BENCHES = (
    "decoding",
    "serving",
    "assisted",
    "prompt_lookup",
    "lookahead",
    "medusa",
    "layerskip",
    "quantization",
    "ladder",
    "streaming",
)
RESULTS = ROOT / "bench" / "results"
OTHERS = ROOT / "build" / "bench"  # results of quick runs and of other files' questions
UNFINISHED = ROOT / "build" / "bench-unfinished.json"

for name in BENCHES:
    import_module(f"bench.{name}")  # each registers its claims


def main() -> int:
    """Measure the named claims and print their table; returns the exit status, 2 if no such claim exists."""
    options = parse()
    run = Run(options.quick, options.questions)
    try:
        chosen, folder = choose(options), results(run)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    if warning := machine.busy_warning():
        say(warning)
    # continue an interrupted run of the same command
    wanted = [chosen, str(folder)]
    done = unfinished(wanted)
    for name in (progress := bar(chosen, desc="claims", unit="claim")):
        progress.set_postfix_str(name)
        if name not in done:
            record(CLAIMS[name], run, folder)
            done.append(name)
            write_whole(UNFINISHED, json.dumps({"wanted": wanted, "done": done}))
    UNFINISHED.unlink(missing_ok=True)
    print(claim_table([row for row in load(folder / "claims.json") if row.claim in chosen]))
    return 0


def choose(options: argparse.Namespace) -> list[str]:
    """The claims to measure. Raises ValueError, which lists all claims, if none matches."""
    known = [name for name in CLAIMS if CLAIMS[name].asks or not options.questions]
    chosen = [name for name in known if not options.claims or name.startswith(tuple(options.claims))]
    if not chosen:
        kind = "claim that asks questions" if options.questions else "claim"
        raise ValueError(f"no {kind} begins with {' or '.join(options.claims)}; there are: {', '.join(known)}")
    return chosen


def results(run: Run) -> Path:
    """Folder for rows and raw samples; quick runs and every file of questions have their own.

    Raises ValueError for a file that holds no questions.
    """
    parts = [run.questions.stem, key_of(run.questions)] if run.questions else []
    parts += ["quick"] if run.quick else []
    return OTHERS / "-".join(parts) if parts else RESULTS


def key_of(file: Path) -> str:
    """Key that distinguishes the contents of question files. Raises ValueError for an invalid one."""
    try:
        questions(file)
    except OSError as error:
        raise ValueError(f"cannot read {file}: {error.strerror}; --questions takes a file of questions") from None
    return hashlib.sha256(file.read_bytes()).hexdigest()[:8]


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Measure named claims on this machine.")
    parser.add_argument("claims", nargs="*", help="a claim's name, or how it begins; default: all")
    parser.add_argument("--questions", type=Path, metavar="FILE", help="ask these, in Spec-Bench's format, not ours")
    parser.add_argument("--quick", action="store_true", help="fewer repeats; results go to build/bench/quick")
    return parser.parse_args()


def unfinished(wanted: list) -> list[str]:
    """Claims that an interrupted run of the same command has measured already."""
    before = json.loads(UNFINISHED.read_text()) if UNFINISHED.exists() else {}
    if before.get("wanted") != wanted:
        return []
    say(f"going on with the run that was interrupted: {len(before['done'])} claims are measured")
    return before["done"]


def record(claim: Claim, run: Run, folder: Path) -> None:
    """Measure one claim and write its row and its raw samples into the folder."""
    try:
        measured = claim.measure(run)
    except NotMeasured as problem:
        say(f"{claim.name}: {problem}")
        measured = Measured(None, str(problem))
    ratio, facts = measured.ratio, {"host": machine.host(), "versions": machine.versions()}
    row = make_claim(claim.name, ratio, claim.bar, claim.compared_with(run), claim.unit, measured.note)
    update(folder / "claims.json", [row], run.quick, **facts)
    if ratio:
        raw = {"claim": claim.name, **facts, "dtype": claim.dtype, "unit": "s"}
        raw |= {"a": ratio.a.times, "b": ratio.b.times} | (measured.facts or {})
        path = folder / f"{claim.name.replace('/', '-')}.json"
        path.write_text(json.dumps(raw, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
