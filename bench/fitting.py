"""Which tree Medusa gets on a target (lesson 09): the one that is fastest by its heads' accuracies and by what a step
of so many rows takes on this machine, its forward (the width curve) and all beside it, both timed apart from any text.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import torch

from bench import asking
from bench.asking import costs_of, prompt_of
from bench.registry import NotMeasured
from lessons_lib import Medusa
from lessons_lib.decoding.generate import draft, new_sequence, step, verify
from lessons_lib.decoding.probing import repeatable_step
from lessons_lib.decoding.proposers.medusa import Accuracies, TreeShape, best_size, best_tree
from lessons_lib.decoding.targets import CompiledTarget
from lessons_lib.measure.clock import in_turn
from lessons_lib.measure.speculation import width_cost
from lessons_lib.models import ModelUnavailable, read_card
from lessons_lib.models.medusa import MedusaHeads, load_heads

HEADS = "smol-medusa"
WIDTHS = (1, 2, 4, 6, 8, 11, 16, 24, 32, 48, 64)  # rows of a step, the anchor's and a tree's, where nothing is compiled
EIGHT_BITS_WIDTHS = (1, 5)  # of the compiled step in 8 bits
CACHED = 300  # tokens behind which all is timed


@cache
def heads() -> MedusaHeads:
    """The heads that come with the package. NotMeasured if there are none."""
    try:
        return load_heads(HEADS, asking.model())
    except ModelUnavailable:
        how = "train heads with `python -m lessons_lib.training heads` and store them with `heads-export`"
        raise NotMeasured(f"{HEADS} is not there; {how}") from None


def accuracies() -> Accuracies:
    """How often each head's i-th favourite was right on texts that trained nothing, from their card."""
    return read_card(HEADS)["after"]["accuracies"]


@dataclass(frozen=True)
class Fitted:
    """Medusa on one target: its tree, and what that was chosen by, in units of a one-row forward.

    v: {w: a forward of w rows}. heads_share: {w: all that a step with w - 1 guesses does beside its forward, more than
    a plain one}; commits, which copy a few entries of the cache, are left out.
    """

    tree: TreeShape
    v: dict[int, float]
    heads_share: dict[int, float]

    def overhead(self, rows: float) -> float:
        """A step that feeds so many rows over a plain one."""
        return width_cost(self.v)(rows) + width_cost(self.heads_share)(rows)


def widths_of(target) -> Sequence[int]:
    """The widths that a target is compiled for; where nothing is compiled, WIDTHS."""
    return getattr(target, "widths", None) or WIDTHS


@cache
def fitted(target, repeats: int) -> Fitted:
    """The fastest of the trees whose width was timed: a compiled target's are those that it is compiled for."""
    widths = widths_of(target)
    v, share = costs_of(target, widths, repeats, CACHED), shares(target, widths, repeats)
    sizes = [width - 1 for width in widths if width > 1]
    nodes = best_size(accuracies(), {width: v[width] + share[width] for width in widths}, sizes=sizes)
    return Fitted(best_tree(accuracies(), nodes), v, share)


def shares(target, widths: Sequence[int], repeats: int) -> dict[int, float]:
    """heads_share, as Fitted has it. widths: the first is 1, plain decoding's."""
    trees = {width: best_tree(accuracies(), width - 1) for width in widths}
    calls = {width: around(target, Medusa(heads(), tree)) for width, tree in trees.items()}
    found = in_turn(calls | {"forward": repeatable_step(target, prompt_of(CACHED))}, repeats=repeats)
    more = {width: found[width].median - found[widths[0]].median for width in widths}
    return {width: seconds / found["forward"].median for width, seconds in more.items()}


@torch.no_grad()
def around(target, proposer: Medusa) -> Callable[[], tuple]:
    """A function that does all of a step but the forward and the commit: guess, lay out the tree, choose a path."""
    row = new_sequence(target, prompt_of(CACHED), proposer, None, asking.TOKENS, asking.TOKENS)
    step(target, [row])  # the prompt, which shows the proposer a state
    (scores,) = target.run(draft([row]))
    row.cache.keep(len(row.ids) - 1)

    @torch.no_grad()
    def again() -> tuple:
        draft([row])
        return verify(row, scores)

    return again


@cache
def eight_bits() -> CompiledTarget:
    """The target with weights and activations rounded to 8 bits, compiled for plain steps and trees of four guesses."""
    return asking.run_once(asking.model().target(weights="int8").decoder, EIGHT_BITS_WIDTHS)
