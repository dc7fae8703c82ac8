"""Medusa heads as a file (lesson 09): their blocks in half precision; the LM head that they share is their model's."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from lessons_lib.models import registry
from lessons_lib.models.language_model import LanguageModel
from lessons_lib.models.medusa import MedusaHeads
from lessons_lib.models.store import ModelUnavailable

WEIGHTS, CARD = "heads.safetensors", "heads.json"
KEPT = "kept"  # in the file: the tokens that trimmed heads score


def save_heads(heads: MedusaHeads, folder: Path, base: str, **card) -> None:
    """Write the parameters and a card that names the model they belong to; card: what else it says.

    fp16 rather than bf16: weights this small need no wide exponent, and rounding is eight times finer.
    """
    tensors = {name: value.detach().to("cpu", torch.float16) for name, value in heads.named_parameters()}
    if heads.kept is not None:
        tensors[KEPT] = heads.kept.to("cpu", torch.int32)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / WEIGHTS)
    sizes = {name: getattr(heads, name) for name in ("count", "blocks", "anchor_rank", "width", "vocab_size")}
    card = {"base": base} | sizes | {"own": bool(heads.own), "kept": heads.scored} | card
    (folder / CARD).write_text(json.dumps(card, indent=1) + "\n", encoding="utf-8")


def load_heads(folder: str | Path, model: LanguageModel, count: int | None = None) -> MedusaHeads:
    """The heads stored in `folder`, or in the package under that name, on the model's device and in its dtype.

    count: how many heads are expected (None: as many as there are). ModelUnavailable if there are none; ValueError
    for heads of another model or number.
    """
    folder = Path(folder) if Path(folder).is_dir() else registry.OURS / folder
    card = read_card(folder)
    lm_head = model.network.get_output_embeddings().weight
    check_fits(card, folder, model.name, tuple(lm_head.shape), count)
    heads = MedusaHeads(lm_head, card["count"], card["blocks"], card["own"], card["anchor_rank"])
    tensors = load_file(folder / WEIGHTS)
    kept = tensors.pop(KEPT, None)
    heads.load_state_dict(tensors)
    if kept is not None:
        heads.trim(kept)
    return heads.eval().requires_grad_(False)


def read_card(folder: Path) -> dict:
    """What is known of the heads stored in `folder`. ModelUnavailable if there are none."""
    if not (folder / CARD).is_file():
        raise ModelUnavailable(f"{folder} holds no heads; train some with `python -m lessons_lib.training heads`.")
    return json.loads((folder / CARD).read_text(encoding="utf-8"))


def check_fits(card: dict, folder: Path, base: str, shape: tuple[int, int], count: int | None) -> None:
    """Raise ValueError unless the card is of heads for this model (name, LM head of shape (V, D)) and of this count."""
    theirs = card["vocab_size"], card["width"]
    if card["base"] != base or theirs != shape:
        raise ValueError(
            f"{folder} holds heads of {card['base']!r} (vocabulary {theirs[0]}, width {theirs[1]}), not of {base!r} "
            f"({shape[0]}, {shape[1]}); load that model, or train heads for this one"
        )
    if count not in (None, card["count"]):
        raise ValueError(f"{folder} holds {card['count']} heads, not {count}; ask for {card['count']} or train others")
