"""The recipe of smol-draft: `python -m lessons_lib.training collect | distill | evaluate | export | bits`.

That of Medusa heads, which learn from the same texts, is in heads_commands.
"""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from lessons_lib.measure.machine import device_name
from lessons_lib.models import load, pick
from lessons_lib.models.decoder import Decoder
from lessons_lib.models.draft import decoder_of, own_size
from lessons_lib.models.hub import OURS
from lessons_lib.models.store import ModelUnavailable
from lessons_lib.models.stored_draft import CARD, load_draft, save_draft
from lessons_lib.training import bits, card, collect, evaluate, heads_commands, held_out, prompts
from lessons_lib.training.batched import Text
from lessons_lib.training.checkpoint import runs
from lessons_lib.training.distill import Recipe, distill, fresh, trained

TARGET, DRAFT = "smollm2-135m", "smol-draft"
DESIGNS, BITS = "designs.json", "bits.json"  # beside the weights


def main(arguments: list[str] | None = None) -> int:
    """Parse the command line and run one part of the recipe; returns the exit status.

    A ValueError is printed, status 2; ModelUnavailable where a model cannot be had.
    """
    options = parser().parse_args(arguments)
    try:
        return COMMANDS[options.command](options)
    except (ValueError, ModelUnavailable) as error:
        print(error, file=sys.stderr)
        return 2


def parser() -> argparse.ArgumentParser:
    """The parts of the recipe and their options."""
    top = argparse.ArgumentParser(prog="python -m lessons_lib.training")
    parts = top.add_subparsers(dest="command", required=True, metavar="PART")
    part = parts.add_parser("collect", help="the target writes texts; resumable")
    part.add_argument("--prompts", type=Path, help="JSON lines with id, kind, prompt, context, to train on")
    part.add_argument("--held-out", action="store_true", help="answer our held-out prompts, greedily, instead")
    part.add_argument("--texts", type=int, help="stop at so many (default: all prompts)")
    part.add_argument("--rows", type=int, default=64, help="texts written at a time")
    part.add_argument("--device", default="cpu", help="cpu, cuda or auto")
    heads_commands.add_training(parts, "distill", Recipe, "train on the texts").set_defaults(device="cpu")
    part = parts.add_parser("evaluate", help="tokens per forward on the held-out texts")
    part.add_argument("--run", help="a run's checkpoint (default: the stored draft)")
    part.add_argument("--gamma", type=int, default=4)
    part.add_argument("--log", action="store_true", help="add the run to the designs that the card lists")
    part = parts.add_parser("export", help="store a run's draft with the package")
    part.add_argument("--run", default="default")
    part.add_argument("--into", type=Path, default=OURS / DRAFT)
    part.add_argument("--note", default="", help="a sentence for the card, on what the recipe does not say")
    part = parts.add_parser("bits", help="what runs are worth whose drafts are rounded, on the held-out texts")
    part.add_argument("--runs", nargs="+", required=True, help="of drafts that were trained alike, such as of N and 2N")
    heads_commands.add_parts(parts)
    return top


def run_collect(options: argparse.Namespace) -> int:
    """The target writes; what it wrote lies in the cache.

    ValueError if nothing says what it shall answer, for a file of prompts as `prompts.read`, and an unknown device;
    ModelUnavailable as `load`.
    """
    if not options.held_out and not options.prompts:
        raise ValueError("what shall be answered? --prompts FILE names the prompts to train on, --held-out takes ours")
    chosen = held_out.prompts() if options.held_out else training_prompts(options)
    into, drawn = collect.folder(options.held_out), 0 if options.held_out else collect.DRAWN
    longest = held_out.LONGER["qa"] if options.held_out else prompts.LONGEST
    model = load(TARGET, device=options.device)
    chosen = prompts.interleave(chosen)
    with collect.clocked(into, device_name(model.device)):
        count = collect.collect(model, chosen, into, options.texts, options.rows, longest=longest, drawn=drawn)
    print(f"{count} texts in {into}")
    return 0


def training_prompts(options: argparse.Namespace) -> list[prompts.UserTurn]:
    """Those of the file that may train, more tasks on their passages, and our own. ValueError as `prompts.read`."""
    people = prompts.for_training(prompts.read(options.prompts))
    return people + prompts.again(people) + prompts.own()


def run_distill(options: argparse.Namespace) -> int:
    """Train a run, or go on with it; products in bf16 where the device computes in it.

    ValueError without texts, as `written`, for an unknown device, and as `distill`; ModelUnavailable as `load`.
    """
    recipe = heads_commands.chosen(options, Recipe)
    texts = written(collect.training_texts(), recipe.only)
    device, dtype = pick(options.device, "auto")
    run = distill(target(device), texts, recipe, runs(DRAFT, options.run), options.minutes, fast=dtype == "bf16")
    print(f"{run.step} of {recipe.steps} steps, loss {run.curve[-1]['loss']}; {runs(DRAFT, options.run)}")
    return 0


def written(texts: list[Text], only: str) -> list[Text]:
    """The texts that were written so. ValueError for a way that there is not, and if none was."""
    if only not in ("", "greedy", "drawn"):
        raise ValueError(f"--only {only!r} is unknown; choose greedy or drawn, or leave it out")
    chosen = [text for text in texts if not only or (text.temperature > 0) == (only == "drawn")]
    if not chosen:
        raise ValueError(f"no text is {only}; collect more of them")
    return chosen


def run_evaluate(options: argparse.Namespace) -> int:
    """Print what a draft is worth on the held-out texts.

    ValueError for a log of no run, a run that was not trained, without texts, and for a gamma below 1;
    ModelUnavailable as `load`.
    """
    if options.log and not options.run:
        raise ValueError("--log lists a run; name it with --run")
    if options.run:
        draft = trained(target(), runs(DRAFT, options.run)).draft
    else:
        draft = decoder_of(load(DRAFT, device="cpu", dtype="bf16").network)
    found = evaluate.evaluate(draft, collect.held_out_texts(), options.gamma)
    print(json.dumps(found, indent=1))
    if options.log:
        log_design(options.run, draft, found)
    return 0


def log_design(name: str, draft: Decoder, found: dict) -> None:
    """Add a line to the designs that were tried; a later one of this name replaces the earlier.

    found: as `evaluate` returns it. ValueError for a run that was not trained; ModelUnavailable as `load`.
    """
    run = trained(target(), runs(DRAFT, name))
    line = {"name": name, "parameters": own_size(draft)}
    line |= {
        "steps": run.step,
        "gamma": found["gamma"],
        "macro": round(found["macro"], 4),
        "recipe": asdict(run.recipe),
    }
    others = [design for design in tried() if design["name"] != name]
    (OURS / DRAFT / DESIGNS).write_text(json.dumps([*others, line], indent=1) + "\n", encoding="utf-8")


def run_bits(options: argparse.Namespace) -> int:
    """Store what drafts of several sizes are worth in several widths.

    ValueError for a run that was not trained, and without texts; ModelUnavailable as `load`.
    """
    texts, found = collect.held_out_texts(), []
    for name in options.runs:
        run = trained(target(), runs(DRAFT, name))
        rows = bits.rounded_worth(run.draft, texts, bits.FORMATS)
        size, recipe = own_size(run.draft), asdict(run.recipe)
        found.append({"run": name, "parameters": size, "steps": run.step, "recipe": recipe, "rows": rows})
    (OURS / DRAFT / BITS).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0


def run_export(options: argparse.Namespace) -> int:
    """Store a run's draft with its card and page.

    ValueError for a run that was not trained, and without texts; ModelUnavailable as `load`.
    """
    texts, run = collect.held_out_texts(), trained(target(), runs(DRAFT, options.run))
    before = evaluate.evaluate(fresh(target(), run.recipe, run.draft.kept).draft, texts)
    save_draft(run.draft, options.into, TARGET)  # what is measured is what was stored, rounded
    stored = decoder_of(load_draft(options.into, load(TARGET, device="cpu", dtype="bf16").network))
    after = evaluate.evaluate(stored, texts)
    took = collect.took(collect.folder())
    facts = card.facts(run, collect.training_texts(), took, tried(), before, after, options.note)
    save_draft(run.draft, options.into, TARGET, **facts)
    said = json.loads((options.into / CARD).read_text(encoding="utf-8"))
    (options.into / card.PAGE).write_text(card.page(DRAFT, run, said, options.into), encoding="utf-8")
    print(f"{sum(file.stat().st_size for file in options.into.iterdir()) / 1e6:.2f} MB in {options.into}")
    return 0


def tried() -> list[dict]:
    """The designs that were screened, as they were logged."""
    path = OURS / DRAFT / DESIGNS
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []


def target(device: str = "cpu") -> Decoder:
    """The target in float32, to begin drafts from. ValueError for an unknown device; ModelUnavailable as `load`."""
    return load(TARGET, device=device, dtype="fp32").target(kind="decoder").decoder


COMMANDS = {"collect": run_collect, "distill": run_distill, "evaluate": run_evaluate, "export": run_export}
COMMANDS |= {"bits": run_bits} | heads_commands.COMMANDS

if __name__ == "__main__":
    sys.exit(main())
