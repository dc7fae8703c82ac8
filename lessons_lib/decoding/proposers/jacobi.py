"""Jacobi decoding (lesson 08): start from an initial guess of many tokens and refine all of them in every pass.

Greedy decoding of m tokens solves m equations, y_i = argmax p(. | x, y_<i). Each depends on the tokens before it.
Jacobi iteration updates all of them at once from any initial guess; after k iterations the first k tokens are final.
Santilli et al. 2023 (arXiv 2305.10427).
"""

import random
from collections.abc import Sequence

import torch

from lessons_lib.decoding.checks import check_integers
from lessons_lib.decoding.draft_tree import DraftTree, ModelOutput, plain_input
from lessons_lib.decoding.proposers import Proposer
from lessons_lib.decoding.sampling import top_tokens


class Jacobi(Proposer):
    """Drafts a chain of n - 1 tokens: the last step's predictions after its first rejected token, then random ones.

    n: tokens per forward pass, the root included. seed: of the random tokens, which are taken from the text so far.
    """

    def __init__(self, n: int = 8, seed: int = 0):
        check_integers(n=n)
        if n < 2:
            raise ValueError(f"n must be at least 2 (the last committed token and one draft token), not {n}")
        self.n, self.seed = n, seed

    def reset(self, target, prompt: Sequence[int]) -> None:
        """Start a new text without predictions, with the same seed."""
        self.rng, self.predicted = random.Random(self.seed), []

    def propose(self, ids: Sequence[int], tree: DraftTree) -> None:
        """Add the predictions of the last step as a chain, filled up to n - 1 tokens."""
        missing = self.n - 1 - len(self.predicted)
        tree.add_chain(self.predicted + [self.rng.choice(ids) for _ in range(missing)])

    def observe(self, tree: DraftTree, path: list[int], tokens: list[int], output: ModelOutput) -> None:
        """Keep the argmax at the first rejected node and at all later ones: predictions after the bonus token."""
        rejected = output.logits[1 + len(path) :]
        self.predicted = top_tokens(rejected) if len(rejected) else []


@torch.no_grad()
def iterates(target, prompt: Sequence[int], guess: Sequence[int]) -> list[list[int]]:
    """Textbook Jacobi iteration for the m tokens after the prompt -> the initial guess (m) and each iterate (m).

    Stops when an iteration changes nothing, after at most m + 1 forward passes. The last iterate is the greedy output.
    Solving one block of tokens after the other, with earlier blocks as part of the prompt, is the Gauss-Seidel form.
    """
    if not len(prompt) or not len(guess):
        raise ValueError("prompt and guess need at least one token each")
    rounds, uncomputed = [list(guess)], list(prompt)
    cache = target.new_cache(len(prompt) + len(guess))
    # Iterate to a fixed point. The last token of an iterate is no input: its logits would predict token m + 1.
    while len(rounds) < 2 or rounds[-1] != rounds[-2]:
        tokens = uncomputed + rounds[-1][:-1]
        (output,) = target.run([plain_input(tokens, cache, len(guess))])
        rounds.append(top_tokens(output.logits))
        cache.keep(len(prompt) - 1)  # all but the last prompt token, whose logits the next iteration needs
        uncomputed = list(prompt[-1:])
    return rounds
