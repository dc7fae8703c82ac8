"""What lessons and benches ask of a target beside text (lessons 03, 06): one step to time again and again, what wider
ones cost, what it says along a text, how far a text written in another rounding falls short of its own choices, and
where two part. Prompts are ids, at least one; errors are those of the target's `new_cache` and `run`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile

import torch
from torch import Tensor

from lessons_lib.decoding.draft_tree import plain_input
from lessons_lib.decoding.targets.base import Target
from lessons_lib.measure.clock import Samples, in_turn


def repeatable_step(target: Target, prompt: Sequence[int], tokens: int = 1) -> Callable[[], None]:
    """A function that feeds `tokens` tokens after the prompt and makes the cache forget them: always the same step."""
    cache = target.new_cache(len(prompt) + tokens)
    with torch.no_grad():
        target.run([plain_input(prompt, cache)])

    @torch.no_grad()
    def step() -> None:
        target.run([plain_input([prompt[-1]] * tokens, cache, tokens)])
        cache.keep(len(prompt))

    return step


def width_times(
    target: Target, prompt: Sequence[int], widths: Sequence[int], device: str, repeats: int
) -> dict[int, Samples]:
    """{w: seconds of a forward pass of w tokens after the prompt}, timed in turn; v(w) of it: `cost.width_curve`."""
    return in_turn({w: repeatable_step(target, prompt, w) for w in widths}, device, repeats)


@torch.no_grad()
def logits_along(target: Target, ids: Sequence[int], wanted: int) -> Tensor:
    """(wanted, V) logits after each of the last `wanted` tokens of ids, from one forward pass over all of them."""
    cache = target.new_cache(len(ids))
    (scores,) = target.run([plain_input(ids, cache, wanted)])
    return scores.logits


def logit_gap(target: Target, prompt: Sequence[int], new: Sequence[int], barred: Sequence[int] = ()) -> Tensor:
    """(n,) how far the logit of each new token lies below the target's largest at its place; 0: it is the argmax.

    One forward over the whole text. A greedy text of the same weights in another rounding differs only where
    this is tiny; a large value is an error, not rounding. barred: ids that the text was kept from, such as an end
    token that was held back: they are not the argmax. IndexError for ids that are not in the vocabulary.
    """
    logits = logits_along(target, [*prompt, *new][:-1], len(new)).float()
    logits[:, list(barred)] = -torch.inf
    return logits.max(-1).values - logits[range(len(new)), list(new)]


def agreed(one: Sequence, other: Sequence) -> int:
    """How many tokens two texts share before the first difference, or before one of them ends."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


@dataclass(frozen=True)
class Divergence:
    """Where two texts part: after `same` tokens, whose rivals are `margin` logits apart, while numbers of that size
    can be told apart from `spacing` on in the target's format."""

    same: int
    margin: float
    spacing: float

    @property
    def near_tie(self) -> bool:
        """Whether rounding explains it: each of the two logits may be off by two steps of its format."""
        return self.margin <= 4 * self.spacing

    def __str__(self) -> str:
        tie = "a near tie" if self.near_tie else "NOT a near tie"
        return f"they part at token {self.same + 1}, margin {self.margin:.3f}, spacing {self.spacing:.3f}: {tie}"


def first_divergence(
    target: Target, prompt: Sequence[int], one: Sequence[int], other: Sequence[int]
) -> Divergence | None:
    """Audit two texts (ids) that should be equal -> where they part; None if one of them is how the other begins."""
    same = agreed(one, other)
    if same == min(len(one), len(other)):
        return None
    (logits,) = logits_along(target, [*prompt, *one[:same]], 1)
    rivals = logits[[one[same], other[same]]].double()
    step = torch.finfo(logits.dtype).eps * 2.0 ** rivals.abs().max().log2().floor().item()
    return Divergence(same, (rivals[0] - rivals[1]).abs().item(), step)
