"""The card of trained heads as a page to read beside the weights (lesson 09)."""

from collections.abc import Callable

from lessons_lib.measure.tables import markdown
from lessons_lib.models.medusa import own_parameters, shared_parameters
from lessons_lib.training.heads import HeadsRecipe
from lessons_lib.training.joint import JointRecipe

PAGE = "README.md"
TEXT = """# {name}: {count} Medusa heads for {base}

{parameters:,} parameters in {count} heads of {blocks} residual block(s), stored in half precision
({megabytes:.1f} MB). They read {base}'s state after the final norm{anchor}; head k guesses the token k places
behind the next one. They choose among the {kept:,} tokens that the training texts use most, and so read that many rows
of the LM head for a guess{trained}. Use:
`Medusa(heads, tree)` in `generate`, with `heads = load_heads("{name}", model)` from `lessons_lib.decoding`.

## Data
{texts:,} texts that {base} wrote itself, collected as smol-draft's were (its card says from which prompts;
NOTICE names licences and addresses). Those about a tenth of the passages and topics train nothing: the tree is chosen
by them. The weights are under the Apache License 2.0, as the model's.

## Recipe
{steps:,} steps of about {tokens:,} tokens, the model frozen: cross-entropy of every head, head k's weighted by
{decay}^k; {optimizer} at a rate of {rate}, {warmup} steps of warm-up, then a cosine to 0. Seed {seed}. Training took
{hours:.2f} hours.{note}

    python -m lessons_lib.training collect --prompts FILE --texts {texts}
    python -m lessons_lib.training heads --run {run} {options}
    python -m lessons_lib.training collect --held-out
    python -m lessons_lib.training heads-export --run {run}{joint}

Run on a CPU; on a GPU `collect` alone has gone to its end, and `heads` a few steps
(`bench/results/gpu.json`).

## Worth
How often a head's favourite, or one of five, is right on the texts that train nothing:

{accuracy}

Tokens per target forward, greedy, counted along held-out texts with a tree of {nodes} nodes; {expected:.2f} were
expected if heads were independent:

{speed}
{tries}{together}"""
TRIED = """
## Tried
With a tree of as many nodes. Runs on "earlier texts" are judged by the texts of their own collection, a tenth of which
trained nothing, whatever passage they were about: their shares of right guesses are a little high.

"""


def page(name: str, card: dict, megabytes: float) -> str:
    """The page of heads stored under `name`, in so many megabytes; card: as `heads-export` writes it, else KeyError.

    The functions below take the same card, and give a table as (headings, rows).
    """
    recipe, after = card["recipe"], card["after"]
    facts = {key: card[key] for key in ("base", "count", "blocks", "texts", "steps", "hours", "note", "run", "kept")}
    facts |= {key: recipe[key] for key in ("tokens", "decay", "rate", "warmup", "seed")}
    facts |= {"options": options(recipe), "note": f" {card['note']}" if card["note"] else ""}
    return TEXT.format(
        name=name,
        parameters=parameters(card),
        megabytes=megabytes,
        anchor=f" and, by a map of rank {card['anchor_rank']}, the token chosen from it" if card["anchor_rank"] else "",
        trained="" if recipe["kept"] else "; they were trained against the whole vocabulary",
        joint="".join(f" --{key} NAME" for key in ("joint", "tries") if card.get(key)).replace("tries", "beside"),
        optimizer="Muon" if recipe["muon"] else "AdamW",
        accuracy=markdown(*accuracy(card)),
        nodes=after["nodes"],
        expected=after["expected"],
        speed=markdown(*speed(card)),
        tries=TRIED + markdown(*tries(card)) + "\n" if card["tries"] else "",
        together=together(card["joint"]) if "joint" in card else "",
        **facts,
    )


def accuracy(card: dict) -> tuple[list[str], list[list[str]]]:
    """A row per head: top-1 and top-5 before and after training."""
    pairs = zip(card["before"]["accuracies"], card["after"]["accuracies"], strict=True)
    rows = [[f"{k}", *(f"{sum(row[:top]):.0%}" for top in (1, 5) for row in pair)] for k, pair in enumerate(pairs, 1)]
    return ["head", "top-1 untrained", "top-1", "top-5 untrained", "top-5"], rows


def speed(card: dict) -> tuple[list[str], list[list[str]]]:
    """Tokens per forward by kind, before and after training, each with the tree that is best for it."""
    kinds = list(card["after"]["kinds"])
    rows = [[when, *(f"{card[when]['kinds'][kind]:.2f}" for kind in kinds), f"{card[when]['macro']:.2f}"]
            for when in ("before", "after")]  # fmt: skip
    return ["training", *kinds, "mean of the kinds"], rows


def together(joint: dict) -> str:
    """What a joint run came to on texts that trained nothing. joint: recipe and curve."""
    first, last = joint_looks(joint)[0], joint_looks(joint)[-1]
    spelt = options(joint["recipe"], JointRecipe)
    return (
        f"\n## Trained with the model\n`heads-joint {spelt}`, not stored: on texts that train nothing the divergence "
        f"from the old model went from {first['held_kl']:.3f} to {last['held_kl']:.3f} nats, the heads' weighted loss "
        f"from {first['held_heads']:.2f} to {last['held_heads']:.2f}, and head 1 was right in {first['top1'][0]:.1%} "
        f"and {last['top1'][0]:.1%} of all places. Every step's losses are in heads.json.\n"
    )


def joint_looks(joint: dict) -> list[dict]:
    """The rows of a joint run's curve at which texts that train nothing were looked at: first, on the way, and last."""
    return [row for row in joint["curve"] if "held_kl" in row]


def options(recipe: dict, kind: type = HeadsRecipe) -> str:
    """How the command line spells a recipe of this kind, defaults left out."""
    return " ".join(f"--{key} {value}" for key, value in recipe.items() if value != getattr(kind, key))


def in_words(recipe: dict) -> str:
    """What sets a run of heads apart from others."""
    blocks, rank = recipe["blocks"], recipe["anchor_rank"]
    anchor = f"anchor by a map of rank {rank}" if rank else "without the anchor"
    return f"{blocks} block{'s' * (blocks > 1)}, {anchor}, {recipe['steps']} steps at a rate of {recipe['rate']}"


def tries(card: dict, said: Callable[[dict], str] = options) -> tuple[list[str], list[list[str]]]:
    """A row for the stored heads and for each run that was not: what is said of its recipe, and what it was worth."""
    runs = [{"name": "as stored", "recipe": card["recipe"], "texts": card["texts"]} | card["after"], *card["tries"]]
    worth = lambda run: [*(f"{row[0]:.0%}" for row in run["accuracies"]), f"{run['macro']:.2f}"]  # noqa: E731
    rows = [[run["name"], f"{run['texts']:,}", said(run["recipe"]), *worth(run)] for run in runs]
    heads = [f"head {k} right" for k in range(1, card["count"] + 1)]
    return ["run", "texts", "options", *heads, "tokens per forward"], rows


def parameters(card: dict) -> int:
    """How many the heads have."""
    form = {"blocks": card["blocks"], "anchor_rank": card["anchor_rank"]}
    if card["own"]:
        return own_parameters(card["count"], card["width"], card["vocab_size"], **form)
    return shared_parameters(card["count"], card["width"], **form)
