"""The card that lies beside a stored draft (lesson 06): how it was made, and what it was worth before and after."""

import json

from lessons_lib.measure.tables import Table
from lessons_lib.models import hub
from lessons_lib.models.stored_draft import CARD


def card_of(name: str) -> dict:
    """The card of one of our drafts; {} for any other model."""
    path = hub.OURS / name / CARD
    return json.loads(path.read_text(encoding="utf-8")) if name in hub.DRAFTS and path.is_file() else {}


def before_and_after(card: dict) -> Table | None:
    """Tokens per forward and the share of right guesses on held-out texts, by kind, before and after training."""
    if not {"before", "after"} <= set(card):
        return None
    kinds = list(card["after"]["kinds"])
    rows = [[when, *(_cell(card[when]["kinds"][kind]) for kind in kinds), f"{card[when]['macro']:.2f}"]
            for when in ("before", "after")]  # fmt: skip
    return [f"held out, gamma {card['after']['gamma']}", *kinds, "mean of the kinds"], rows


def designs(card: dict) -> Table | None:
    """The drafts that were tried: size, steps of training, tokens per forward."""
    if not card.get("designs"):
        return None
    rows = [[d["name"], f"{d['parameters']:,}", f"{d['steps']:,}", f"{d['macro']:.2f}"] for d in card["designs"]]
    return ["design", "parameters", "training steps", "tokens per forward"], rows


def _cell(of: dict[str, float]) -> str:
    return f"{of['tokens_per_forward']:.2f} ({of['right']:.0%} right)"
