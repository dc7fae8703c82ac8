"""Checkers: top-p sampling, scoring a text in one pass, a loop that forgets its text, and the largest batch."""

import torch
from torch import Tensor

from lessons_lib.course.exercises import Attempt, Wrong, exercise, expect
from lessons_lib.measure.config import CONFIGS


class Toy:
    """A decoder of 7 tokens, whose logits after a text depend on all of its tokens; counts its forward passes."""

    def __init__(self):
        self.fed: list[int] = []  # tokens of each pass
        self.table = torch.randn(7, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def __call__(self, tokens: Tensor) -> Tensor:
        """tokens (T,) -> states (T, 1): the sum of the tokens so far, each times its position, modulo 7."""
        self.fed.append(len(tokens))
        return (tokens * torch.arange(1, len(tokens) + 1)).cumsum(0)[:, None] % 7

    def logits(self, states: Tensor) -> Tensor:
        """states (..., 1) -> logits (..., 7)."""
        return self.table[states[..., 0]]

    def __repr__(self) -> str:
        return "decoder"


@exercise("01.1")
def top_p_probabilities(attempt: Attempt) -> None:
    """The smallest set of most likely tokens whose probability reaches top_p, renormalised."""
    p = torch.tensor([0.15, 0.5, 0.05, 0.3], dtype=torch.float64)
    for top_p, kept in ((0.45, [0, 1, 0, 0]), (0.6, [0, 1, 0, 1]), (0.9, [1, 1, 0, 1]), (1.0, [1, 1, 1, 1])):
        wanted = p * torch.tensor(kept)
        expect(attempt, p.log(), top_p, equals=wanted / wanted.sum())
    both = torch.stack([p, p.flip(0)])
    kept = torch.tensor([[0, 1, 0, 1], [1, 0, 1, 0]])
    expect(attempt, both.log(), 0.6, equals=both * kept / 0.8)


@exercise("01.2")
def token_log_probs(attempt: Attempt) -> None:
    """log p of each token given all earlier ones, from one forward pass."""
    for text in ([3, 1, 4, 1, 5, 2], [6, 0]):
        ids, decoder = torch.tensor(text), Toy()
        wanted = Toy().logits(Toy()(ids)).log_softmax(-1)[range(len(text) - 1), text[1:]]
        expect(attempt, decoder, ids, equals=wanted)
        if len(decoder.fed) != 1:
            raise Wrong(f"{len(decoder.fed)} forward passes for {len(text)} tokens; one is enough.")


@exercise("01.3")
def fast_generate(attempt: Attempt) -> None:
    """Greedy tokens that depend on the whole text, in one forward pass per new token."""
    for text, new in (([2, 5, 1], 6), ([4], 1)):
        ids, decoder = torch.tensor(text), Toy()
        wanted = text.copy()
        for _ in range(new):
            reference = Toy()
            wanted.append(int(reference.logits(reference(torch.tensor(wanted)))[-1].argmax()))
        expect(attempt, decoder, ids, new, equals=torch.tensor(wanted))
        if len(decoder.fed) != new:
            raise Wrong(f"{len(decoder.fed)} forward passes for {new} new tokens; {new} are enough.")


@exercise("01.4")
def largest_batch(attempt: Attempt) -> None:
    """The most users whose caches fit beside the weights and whose step stays within the limit."""
    llama, smol = CONFIGS["llama-2-7b"], CONFIGS["smollm2-135m"]
    a100 = (2.04e12, 312e12, 72e9)  # bytes/s, FLOP/s, bytes
    for args, users in (
        ((llama, 1024, 0.05, *a100), 109),  # memory is the limit
        ((llama, 1024, 0.025, *a100), 60),  # time is the limit
        ((llama, 1024, 0.005, *a100), 0),  # reading the weights takes longer
        ((smol, 64, 0.05, 12e9, 320e9, 8e9), 28),
    ):
        expect(attempt, *args, equals=users)
