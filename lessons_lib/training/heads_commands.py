"""The recipe of smol-medusa (lesson 09): `python -m lessons_lib.training heads | heads-evaluate | heads-export`.

Texts come from `collect`, as for smol-draft. The tree is chosen by texts that train nothing, and judged by others.
`heads-joint` trains heads and model together, to be compared with.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path

import torch
from torch import Tensor

from lessons_lib.decoding.proposers.medusa import best_tree, expected_tokens
from lessons_lib.models import LanguageModel, load
from lessons_lib.models.hub import OURS, pick_device, pick_dtype
from lessons_lib.models.medusa import CARD, WEIGHTS, MedusaHeads, load_heads, read_card, save_heads
from lessons_lib.training import collect, heads_card
from lessons_lib.training.batched import Text
from lessons_lib.training.checkpoint import read_checkpoint, runs
from lessons_lib.training.evaluate_heads import evaluate_heads
from lessons_lib.training.heads import HeadsRecipe, fresh, split, train_heads, trained
from lessons_lib.training.heads_loss import judge
from lessons_lib.training.joint import JointRecipe, train_joint

TARGET, HEADS = "smollm2-135m", "smol-medusa"
LOOKED_AT = 24  # held-back texts that a joint run looks at
NODES = 16  # of the tree that figures are quoted for; lesson 09 chooses by the machine's width curve


def add_parts(parts) -> None:
    """The commands and their options, as sub-parsers."""
    add_training(parts, "heads", HeadsRecipe, "train Medusa heads on the texts")
    add_training(parts, "heads-joint", JointRecipe, "train heads further and the model with them (Medusa-2)")
    part = parts.add_parser("heads-evaluate", help="accuracies, and tokens per forward on the held-out texts")
    part.add_argument("--run", default="default")
    part.add_argument("--nodes", type=int, default=NODES, help="of the tree, the root not counted")
    part = parts.add_parser("heads-export", help="store a run's heads with the package")
    part.add_argument("--run", default="default")
    part.add_argument("--into", type=Path, default=OURS / HEADS)
    part.add_argument("--nodes", type=int, default=NODES)
    part.add_argument("--note", default="", help="a sentence for the card, on what the recipe does not say")
    part.add_argument("--joint", help="a run of heads-joint whose losses the card shall keep")
    part.add_argument("--beside", nargs="*", default=[], help="other runs of heads whose worth the card shall name")


def add_training(parts, name: str, recipe: type, said: str) -> argparse.ArgumentParser:
    """A command that trains by a recipe of this type, whose fields are options."""
    part = parts.add_parser(name, help=f"{said}; resumable")
    part.add_argument("--run", default="default", help="name of this training run")
    part.add_argument("--minutes", type=float, help="stop after so long, with a checkpoint to go on from")
    part.add_argument("--device", default="auto", help="cpu, cuda or auto")
    for field in fields(recipe):
        several = {"nargs": "+", "type": int} if isinstance(field.default, tuple) else {"type": type(field.default)}
        part.add_argument(f"--{field.name}", default=field.default, **several)
    return part


def chosen(options: argparse.Namespace, recipe: type):
    """The recipe of this type that the options spell; AttributeError for a field that they lack."""
    spelt = {field.name: getattr(options, field.name) for field in fields(recipe)}
    return recipe(**{name: tuple(value) if isinstance(value, list) else value for name, value in spelt.items()})


def run_heads(options: argparse.Namespace) -> int:
    """Train a run, or go on with it.

    ValueError without texts, for an unknown device, and as `train_heads`; ModelUnavailable as `load`.
    """
    recipe, folder = chosen(options, HeadsRecipe), runs(HEADS, options.run)
    run = train_heads(lm_head(options.device), collect.training_texts(), recipe, folder, options.minutes)
    print(f"{run.step} of {recipe.steps} steps, {json.dumps(run.curve[-1])}; {folder}")
    return 0


def run_joint(options: argparse.Namespace) -> int:
    """Medusa-2, on the texts that train heads; the model in float32, as its adapters learn little at a time.

    ValueError as `run_heads`, and if the run that it begins with was not trained; ModelUnavailable as `load`.
    """
    recipe, folder = chosen(options, JointRecipe), runs(HEADS, options.run, "joint")
    decoder = load(TARGET, device=options.device, dtype="fp32").target().decoder
    heads = trained(decoder.head.weight, runs(HEADS, recipe.start)).heads
    texts, held = split(collect.training_texts())
    run = train_joint(decoder, heads, texts, recipe, folder, options.minutes, held[:LOOKED_AT])
    first, last = json.dumps(run.curve[0]), json.dumps(run.curve[-1])
    print(f"{run.step} of {recipe.steps} steps, from {first} to {last}; {folder}")
    return 0


def run_evaluate(options: argparse.Namespace) -> int:
    """Print what a run's heads are worth on the held-out texts.

    ValueError if it was not trained, and without texts; ModelUnavailable as `load`.
    """
    heads, calibration = trained(lm_head(), runs(HEADS, options.run)).heads, split(collect.training_texts())[1]
    print(json.dumps(worth(heads, calibration, collect.held_out_texts(), options.nodes), indent=1))
    return 0


def run_export(options: argparse.Namespace) -> int:
    """Store a run's heads, with what they are worth beside untrained ones and other runs, and their card.

    What was stored there before, and what its card said was tried, is listed among what was tried. ValueError if one
    of these runs was not trained, and without texts; ModelUnavailable as `load`.
    """
    run, texts = trained(lm_head(), runs(HEADS, options.run)), collect.training_texts()
    calibration, measured = split(texts)[1], collect.held_out_texts()
    before = worth(fresh(lm_head(), run.recipe, run.heads.kept).heads, calibration, measured, options.nodes)
    tries = earlier(options.into, options.run)  # before the card is written anew
    save_heads(run.heads, options.into, TARGET)  # what is measured is what was stored, rounded
    after = worth(load_heads(options.into, model()), calibration, measured, options.nodes)
    facts = {
        "run": options.run,
        "recipe": asdict(run.recipe),
        "steps": run.step,
        "hours": run.seconds / 3600,
        "texts": len(texts),
    }
    curve = [row for row in run.curve if "top1" in row]
    facts |= {"note": options.note, "before": before, "after": after, "curve": curve}
    tries = [row for row in tries if row["name"] not in options.beside]
    facts["tries"] = tries + [tried(name, calibration, measured, options.nodes) for name in options.beside]
    if options.joint:
        saved = read_checkpoint(runs(HEADS, options.joint, "joint"), "heads-joint")
        facts["joint"] = {key: saved[key] for key in ("recipe", "seconds", "curve")}
    save_heads(run.heads, options.into, TARGET, **facts)
    megabytes = (options.into / WEIGHTS).stat().st_size / 1e6
    said = heads_card.page(HEADS, read_card(options.into), megabytes)
    (options.into / heads_card.PAGE).write_text(said, encoding="utf-8")
    print(f"{megabytes:.2f} MB in {options.into}")
    return 0


def earlier(folder: Path, name: str) -> list[dict]:
    """What a card in `folder` says of its heads, unless they were this run's, and of all that was tried before."""
    card = read_card(folder) if (folder / CARD).is_file() else {}
    if "after" not in card:  # nothing stored, or an export that was cut short
        return []
    stored = {key: card[key] for key in ("recipe", "steps", "texts")} | {"name": card["run"]} | card["after"]
    return [row for row in (stored, *card["tries"]) if row["name"] != name]


def tried(name: str, calibration: Sequence[Text], measured: Sequence[Text], nodes: int) -> dict:
    """What a run that is not stored was worth. ValueError if it was not trained; ModelUnavailable as `load`."""
    run = trained(lm_head(), runs(HEADS, name))
    facts = {"name": name, "recipe": asdict(run.recipe), "steps": run.step, "texts": len(collect.training_texts())}
    return facts | worth(run.heads, calibration, measured, nodes)


def worth(heads: MedusaHeads, calibration: Sequence[Text], measured: Sequence[Text], nodes: int) -> dict:
    """Accuracies and the best tree by calibration texts; what it promises, and what it keeps on measured ones.

    nodes: of the tree, the root not counted; ValueError below 0. Tokens per forward as `evaluate_heads` gives them,
    `expected` likewise.
    """
    heads = heads.to(heads.lm_head.dtype)  # as they decode
    accuracies = judge(heads, [text for text in calibration if text.temperature == 0])["accuracies"]
    tree = best_tree(accuracies, nodes)
    (found,) = evaluate_heads(heads, measured, [tree])
    return found | {
        "expected": expected_tokens(tree, accuracies),
        "accuracies": accuracies,
        "choices": [list(choice) for choice in tree.choices],
    }


def model(device: str = "cpu") -> LanguageModel:
    """The target in bf16 where the device computes in it, else in fp32: fp16 would lose small gradients.

    ValueError for an unknown device; ModelUnavailable as `load`.
    """
    device = pick_device(device)
    fast = pick_dtype("auto", device)
    return load(TARGET, device=device, dtype=fast if fast == torch.bfloat16 else "fp32")


def lm_head(device: str = "cpu") -> Tensor:
    """(V, D): the head that the model's own heads share. Errors as `model`."""
    return model(device).network.get_output_embeddings().weight


COMMANDS = {"heads": run_heads, "heads-joint": run_joint, "heads-evaluate": run_evaluate, "heads-export": run_export}
