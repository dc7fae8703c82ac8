"""What lessons and benches ask of a target beside text (lesson 03): one step to time again and again, and how
far a text written in another rounding falls short of this target's own choices."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from lessons_lib.decoding.blocks import Block
from lessons_lib.decoding.targets.base import Target


def repeatable_step(target: Target, prompt: Sequence[int], tokens: int = 1) -> Callable[[], None]:
    """A function that feeds `tokens` tokens after the prompt and makes the cache forget them: always the same step."""
    cache = target.new_cache(len(prompt) + tokens)
    with torch.no_grad():
        target.run([Block(list(prompt), list(range(len(prompt))), None, cache, 1)])

    @torch.no_grad()
    def step() -> None:
        target.run([Block([prompt[-1]] * tokens, list(range(tokens)), None, cache, tokens)])
        cache.keep(len(prompt))

    return step


@torch.no_grad()
def shortfall(target: Target, prompt: Sequence[int], new: Sequence[int], barred: Sequence[int] = ()) -> Tensor:
    """(n,) by how many logits each new token falls short of the target's favourite at its place; 0: it is the one.

    One forward over the whole text. A greedy text of the same weights in another rounding differs only where
    this is tiny; a large value is an error, not rounding. barred: ids that the text was kept from, such as an end
    token that was held back: they are no favourites.
    """
    tokens = [*prompt, *new][:-1]
    cache = target.new_cache(len(tokens))
    (scores,) = target.run([Block(tokens, list(range(len(tokens))), None, cache, len(new))])
    logits = scores.logits.float()
    logits[:, list(barred)] = -torch.inf
    return logits.max(-1).values - logits[range(len(new)), list(new)]
