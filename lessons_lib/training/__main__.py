"""The recipe of smol-draft: `python -m lessons_lib.training collect | distill | evaluate | export`."""

import argparse
import json
import sys
from dataclasses import asdict, fields
from pathlib import Path

from lessons_lib.models import load
from lessons_lib.models.decoder import Decoder
from lessons_lib.models.draft import decoder_of
from lessons_lib.models.registry import OURS
from lessons_lib.models.stored_draft import save_draft
from lessons_lib.paths import cache_dir
from lessons_lib.training import collect, evaluate, prompts
from lessons_lib.training.distill import distill
from lessons_lib.training.run import Recipe, trained

TARGET, DRAFT = "smollm2-135m", "smol-draft"


def main(arguments: list[str] | None = None) -> int:
    """Parse the command line and run one part of the recipe; returns the exit status."""
    options = parser().parse_args(arguments)
    try:
        return COMMANDS[options.command](options)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2


def parser() -> argparse.ArgumentParser:
    """The parts of the recipe and their options."""
    top = argparse.ArgumentParser(prog="python -m lessons_lib.training")
    parts = top.add_subparsers(dest="command", required=True, metavar="PART")
    part = parts.add_parser("collect", help="the target writes texts; resumable")
    part.add_argument("--prompts", type=Path, required=True, help="JSON lines with id, kind, prompt, context")
    part.add_argument("--passages", type=Path, help="a text file whose paragraphs are asked about, too")
    part.add_argument("--held-out", action="store_true", help="answer the held-out prompts, greedily, instead")
    part.add_argument("--texts", type=int, help="stop at so many (default: all prompts)")
    part.add_argument("--rows", type=int, default=64, help="texts written at a time")
    part = parts.add_parser("distill", help="train on the texts; resumable")
    part.add_argument("--run", default="default", help="name of this training run")
    part.add_argument("--minutes", type=float, help="stop after so long, with a checkpoint to go on from")
    for field in fields(Recipe):
        several = {"nargs": "+", "type": int} if field.name == "layers" else {"type": type(field.default)}
        part.add_argument(f"--{field.name}", default=field.default, **several)
    part = parts.add_parser("evaluate", help="tokens per forward on the held-out texts")
    part.add_argument("--run", help="a run's checkpoint (default: the stored draft)")
    part.add_argument("--gamma", type=int, default=4)
    part = parts.add_parser("export", help="store a run's draft with the package")
    part.add_argument("--run", default="default")
    part.add_argument("--into", type=Path, default=OURS / DRAFT)
    return top


def run_collect(options: argparse.Namespace) -> int:
    found = prompts.read(options.prompts)
    if options.held_out:
        chosen = [prompt for prompt in found if prompt.held_out]
    else:
        people = prompts.for_training(found)
        chosen = people + prompts.again(people) + prompts.own()
        chosen += prompts.from_passages(options.passages) if options.passages else []
    into, drawn = collect.folder(options.held_out), 0 if options.held_out else collect.DRAWN
    model = load(TARGET, device="cpu", dtype="bf16")
    count = collect.collect(model, prompts.interleave(chosen), into, options.texts, options.rows, drawn=drawn)
    print(f"{count} texts in {into}")
    return 0


def run_distill(options: argparse.Namespace) -> int:
    chosen = {field.name: getattr(options, field.name) for field in fields(Recipe)}
    recipe = Recipe(**chosen | {"layers": tuple(options.layers)})
    texts = collect.read_all(collect.folder())
    run = distill(target(), texts, recipe, runs(options.run), options.minutes)
    print(f"{run.step} of {recipe.steps} steps, loss {run.curve[-1]['loss']}; {runs(options.run)}")
    return 0


def run_evaluate(options: argparse.Namespace) -> int:
    if options.run:
        draft = trained(target(), runs(options.run)).draft
    else:
        draft = decoder_of(load(DRAFT, device="cpu", dtype="bf16").network)
    print(
        json.dumps(evaluate.evaluate(draft, collect.read_all(collect.folder(held_out=True)), options.gamma), indent=1)
    )
    return 0


def run_export(options: argparse.Namespace) -> int:
    run = trained(target(), runs(options.run))
    curve = run.curve[:: max(1, len(run.curve) // 200)]
    save_draft(run.draft, options.into, TARGET, recipe=asdict(run.recipe), steps=run.step, curve=curve)
    print(f"{sum(file.stat().st_size for file in options.into.iterdir()) / 1e6:.2f} MB in {options.into}")
    return 0


def target() -> Decoder:
    return load(TARGET, device="cpu", dtype="fp32").target(kind="decoder").decoder


def runs(name: str) -> Path:
    return cache_dir() / "training" / DRAFT / f"run-{name}"


COMMANDS = {"collect": run_collect, "distill": run_distill, "evaluate": run_evaluate, "export": run_export}

if __name__ == "__main__":
    sys.exit(main())
