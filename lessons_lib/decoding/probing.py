"""Measuring a target beyond its text (lessons 03, 06): times of repeated steps, the width curve, logits along a text,
logit gaps, and the first divergence of two texts. Prompts are token ids, at least one."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile

import torch
from torch import Tensor

from lessons_lib.decoding.draft_tree import plain_input
from lessons_lib.decoding.targets import Target
from lessons_lib.measure.clock import Samples, in_turn


def repeatable_step(target: Target, prompt: Sequence[int], tokens: int = 1) -> Callable[[], None]:
    """A function that feeds `tokens` tokens after the prompt and then drops them from the cache.

    Every call is the same step, so it can be timed repeatedly.
    """
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
    """{w: seconds of a forward pass over w tokens after the prompt}, timed in turn. `cost.width_curve` gives v(w)."""
    return in_turn({w: repeatable_step(target, prompt, w) for w in widths}, device, repeats)


@torch.no_grad()
def logits_along(target: Target, ids: Sequence[int], wanted: int) -> Tensor:
    """Logits (wanted, V) after each of the last `wanted` tokens of ids, from one forward pass over all ids."""
    cache = target.new_cache(len(ids))
    (output,) = target.run([plain_input(ids, cache, wanted)])
    return output.logits


def logit_gap(target: Target, prompt: Sequence[int], new: Sequence[int], excluded: Sequence[int] = ()) -> Tensor:
    """Logit gap (n,) of each new token: the target's largest logit at its position minus the token's; 0 for the argmax.

    Takes one forward pass over the whole text. Greedy texts of the same weights with different rounding differ only
    where the gap is tiny; a large gap is an error, not rounding. excluded: ids that the text could not contain,
    such as a suppressed end token; they do not count as the argmax.
    """
    logits = logits_along(target, [*prompt, *new][:-1], len(new)).float()
    logits[:, list(excluded)] = -torch.inf
    return logits.max(-1).values - logits[range(len(new)), list(new)]


def agreed(one: Sequence, other: Sequence) -> int:
    """Length of the common prefix of two texts."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


@dataclass(frozen=True)
class Divergence:
    """The first divergence of two texts, after `same` equal tokens.

    margin: difference between the logits of the two tokens. spacing: distance between neighbouring numbers of that
    size in the target's number format.
    """

    same: int
    margin: float
    spacing: float

    @property
    def near_tie(self) -> bool:
        """Whether rounding explains the divergence: each of the two logits may be off by two spacings.

        It never explains a token with logit -inf.
        """
        return math.isfinite(self.margin) and self.margin <= 4 * self.spacing

    def __str__(self) -> str:
        tie = "a near tie" if self.near_tie else "NOT a near tie"
        return f"they part at token {self.same + 1}, margin {self.margin:.3f}, spacing {self.spacing:.3f}: {tie}"


def first_divergence(
    target: Target, prompt: Sequence[int], one: Sequence[int], other: Sequence[int]
) -> Divergence | None:
    """Compare two texts (ids) that should be equal -> their first divergence; None if one is a prefix of the other."""
    same = agreed(one, other)
    if same == min(len(one), len(other)):
        return None
    (logits,) = logits_along(target, [*prompt, *one[:same]], 1)
    rivals = logits[[one[same], other[same]]].cpu().double()  # Apple's GPU has no float64
    step = torch.finfo(logits.dtype).eps * 2.0 ** rivals.abs().max().log2().floor().item()
    return Divergence(same, (rivals[0] - rivals[1]).abs().item(), step)
