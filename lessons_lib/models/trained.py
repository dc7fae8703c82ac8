"""Trained weights that come with the package (lessons 06, 09): one folder each, with tensors and a card.

weights/NAME/ holds weights.safetensors, card.json (sizes, recipe and results, read by code) and README.md (read by
people).
"""

import json
from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import Tensor

from lessons_lib.models.store import ModelUnavailable

OURS = Path(__file__).parents[1] / "weights"
WEIGHTS, CARD = "weights.safetensors", "card.json"


def folder_of(name: str | Path) -> Path:
    """`name` if it is a folder, else the folder of the package's weights with that name, which may not exist."""
    return Path(name) if Path(name).is_dir() else OURS / name


def read_card(name: str | Path) -> dict:
    """The card of these weights; {} if there is none."""
    path = folder_of(name) / CARD
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def read_weights(name: str | Path) -> dict[str, Tensor]:
    """The tensors by name. ModelUnavailable if there are none."""
    path = folder_of(name) / WEIGHTS
    if not path.is_file():
        raise ModelUnavailable(f"{path} is missing; `python -m lessons_lib.training --help` says how to train it.")
    return load_file(path)


def write(folder: Path, tensors: dict[str, Tensor], **card) -> None:
    """Store the tensors and update the card: its other entries stay."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: value.detach().contiguous().cpu() for name, value in tensors.items()}, folder / WEIGHTS)
    (folder / CARD).write_text(json.dumps(read_card(folder) | card, indent=1) + "\n", encoding="utf-8")
