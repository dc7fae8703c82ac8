"""The card of a trained draft (lesson 06): numbers for the lesson, and a page to read beside the weights."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from lessons_lib.measure.tables import markdown
from lessons_lib.models.draft import own_size
from lessons_lib.models.draft_card import before_and_after, designs
from lessons_lib.training.batched import Text
from lessons_lib.training.distill import DraftRun

PAGE = "README.md"
TEXT = """# {name}: a draft for {target}

{parameters:,} parameters of its own in {layers} layers, begun as copies of the target's layers {copied}, stored in 8
bits with a scale per row ({megabytes:.1f} MB). Embedding and head are the target's and are not stored; the head scores
the {kept:,} tokens that the training texts use most. It shares the target's tokenizer. Use: `load("{name}")`, as
`DraftModel(load("{name}").target())` in `generate`, or as `assistant_model` in transformers.

## Data
{texts:,} texts that {target} wrote itself under its chat template, three of four
greedily, the fourth drawn at temperature 0.8. Their prompts: GSM8K train questions, MBPP, self-instruct tasks, a part
of databricks-dolly-15k and paragraphs of WikiText-2's validation split (NOTICE names their licences and addresses),
every tenth held out; further tasks on the same passages; and questions, lists and dialogues of our own
(`lessons_lib/training/prompts.py`). The draft's weights are under the Apache License 2.0, as the target's, whose
layers they began as.

## Recipe
{steps:,} steps of about {tokens:,} tokens: KL to the target's own distribution, mixed with the cross-entropy of its
likeliest token (weight {hard}); {optimizer} at a rate of {rate}, {warmup} steps of warm-up, then a cosine to 0. Seed
{seed}. {took}{note}

    python -m lessons_lib.training collect --prompts FILE --texts {texts}
    python -m lessons_lib.training distill --run main --steps {steps}
    python -m lessons_lib.training collect --held-out
    python -m lessons_lib.training export --run main

`--device cuda` behind `collect` and `distill` takes a GPU.

## Worth
Tokens per target forward, greedy, counted along held-out texts, and how many single guesses are right.

{worth}

## Designs that were screened
Short runs, to choose by; all figures are tokens per forward on the held-out texts. `designs.json` has each one's
recipe, and `LOG.md` says what helped.

{designs}

What drafts of three and of six layers, trained alike, are worth in 2 to 8 bits stands in `bits.json`, where there is
one (`python -m lessons_lib.training bits --runs NAME NAME`; lesson 10 plots it).
"""


def facts(
    run: DraftRun,
    texts: Sequence[Text],
    collecting: Mapping[str, float],
    tried: Sequence[dict],
    before: dict,
    after: dict,
    note: str = "",
) -> dict:
    """What the card says beside layers and target, as JSON holds it.

    texts: what it was trained on. collecting: as `collect.took` returns it. tried: designs; before, after: as
    `evaluate` returns them.
    """
    return {
        "recipe": vars(run.recipe),
        "steps": run.step,
        "hours": run.seconds / 3600,
        "device": run.device,
        "texts": len(texts),
        "collecting": dict(collecting),
        "before": before,
        "after": after,
        "designs": list(tried),
        "note": note,
        "curve": run.curve[:: max(1, len(run.curve) // 200)],
    }


def page(name: str, run: DraftRun, card: dict, folder: Path) -> str:
    """The card as a page, for a draft stored in `folder`. card: `facts` as `save_draft` stored them, else KeyError."""
    return TEXT.format(
        name=name,
        target=card["target"],
        parameters=own_size(run.draft),
        layers=card["layers"],
        copied=", ".join(map(str, run.recipe.layers)),
        megabytes=sum(file.stat().st_size for file in folder.glob("*.safetensors")) / 1e6,
        texts=card["texts"],
        optimizer="Muon" if run.recipe.muon else "AdamW",
        took=took(card),
        note=f" {card['note']}" * bool(card["note"]),
        worth=markdown(*before_and_after(card)),
        designs=markdown(*designs(card)) if card["designs"] else "None.",
        **{name: value for name, value in vars(run.recipe).items() if name != "layers"},
    )


def took(card: dict) -> str:
    """What collecting and training took, and on which devices."""
    collecting = " and ".join(f"{seconds / 60:.0f} minutes on {on}" for on, seconds in card["collecting"].items())
    where = f" on {card['device']}" * bool(card["device"])
    training = f"Training took {60 * card['hours']:.0f} minutes{where}"
    return f"{training}, collecting the texts {collecting or 'a time that nobody kept'}."
