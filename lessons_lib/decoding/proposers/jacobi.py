"""Jacobi decoding (lesson 08): guess many tokens at once and let the target refine them, step after step.

Greedy decoding of m tokens is m equations, y_i = argmax p(. | x, y_<i), each depending on those before. Jacobi
iteration solves all of them at once from any guess: after k rounds the first k tokens are final. Santilli et al.
2023 (arXiv 2305.10427).
"""

import random
from collections.abc import Sequence

import torch

from lessons_lib.decoding.draft_tree import DraftTree, ModelOutput, plain_input
from lessons_lib.decoding.proposers import Proposer, check_integers
from lessons_lib.decoding.proposers.prompt_lookup import PromptLookup
from lessons_lib.decoding.sampling import top_tokens

FILLS = ("random", "last", "eos", "lookup")


class Jacobi(Proposer):
    """A chain of n - 1 guesses: what the last step predicted behind its first wrong guess, then filling.

    n: tokens per forward pass, the root included. fill: what stands where nothing is predicted yet: "random" tokens
    of the text so far (by `seed`), the prompt's "last" token, the target's "eos" token, or what prompt "lookup" finds
    (random ones where it finds too little). Raises ValueError for n < 2, an unknown fill, or "eos" where there is none.
    """

    def __init__(self, n: int = 8, fill: str = "random", seed: int = 0):
        check_integers(n=n)
        if n < 2:
            raise ValueError(f"n must be at least 2 (the last committed token and one guess), not {n}")
        if fill not in FILLS:
            raise ValueError(f"fill={fill!r} is not known; choose one of: {', '.join(FILLS)}")
        self.n, self.fill, self.seed = n, fill, seed

    def reset(self, target, prompt: Sequence[int]) -> None:
        """Start without predictions; the same seed draws the same filling. ValueError for "eos" where there is none."""
        if self.fill == "eos" and not target.eos:
            raise ValueError('fill="eos" needs a target with an end token; choose another fill')
        self.rng, self.guess = random.Random(self.seed), []
        self.fixed = {"last": prompt[-1:], "eos": target.eos[:1]}.get(self.fill)
        self.lookup = PromptLookup(self.n - 1) if self.fill == "lookup" else None
        if self.lookup:
            self.lookup.reset(target, prompt)

    def propose(self, ids: Sequence[int], tree: DraftTree) -> None:
        """The leftover predictions, filled up to n - 1 tokens."""
        guess = self.guess
        if self.lookup:
            self.lookup.learn(ids)
            guess = guess + self.lookup.lookup([*ids[-self.lookup.max_ngram :], *guess])[1]
        guess = guess + [self.rng.choice(self.fixed or ids) for _ in range(self.n - 1 - len(guess))]
        tree.add_chain(guess[: self.n - 1])

    def observe(self, tree: DraftTree, path: list[int], tokens: list[int], scores: ModelOutput) -> None:
        """Keep the predictions that follow the target's own token: after the first rejected node and all later ones."""
        rejected = scores.logits[1 + len(path) :]
        self.guess = top_tokens(rejected) if len(rejected) else []


@torch.no_grad()
def iterates(target, prompt: Sequence[int], guess: Sequence[int]) -> list[list[int]]:
    """Textbook Jacobi iteration on the m tokens after the prompt -> the guess (m) and each round's refinement.

    Stops when a round changes nothing, after at most m + 1 forward passes; the last entry is the greedy text. Solving
    block after block, each with the ones before in its prompt, is the Gauss-Seidel form. Raises ValueError for an
    empty prompt or guess; other errors are the target's.
    """
    if not len(prompt) or not len(guess):
        raise ValueError("prompt and guess need at least one token each")
    rounds, uncomputed = [list(guess)], list(prompt)
    cache = target.new_cache(len(prompt) + len(guess))
    while len(rounds) < 2 or rounds[-1] != rounds[-2]:
        tokens = uncomputed + rounds[-1][:-1]
        (scores,) = target.run([plain_input(tokens, cache, len(guess))])
        rounds.append(top_tokens(scores.logits))
        cache.keep(len(prompt) - 1)
        uncomputed = list(prompt[-1:])
    return rounds
