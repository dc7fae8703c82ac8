"""Typical acceptance (lesson 09): take every guess that the target would not be surprised by. Not lossless.

Cai et al. 2024 (arXiv 2401.10774), section 2.3.1, after truncation by entropy (Hewitt et al. 2022, arXiv
2210.15191).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from lessons_lib.decoding.acceptance import Sampling, draw
from lessons_lib.decoding.proposal import ANCHOR, Tree


@dataclass(frozen=True)
class Typical:
    """Accept a guess of probability above min(epsilon, delta exp(-H)), H the entropy of p in nats.

    p = softmax(logits / temperature). Of all paths of accepted guesses the longest is taken, of equally long ones the
    most probable; the token behind it is drawn from p. Without guesses it is plain sampling; with guesses it prefers
    what was guessed, so that the text no longer follows p. ValueError for settings out of range.
    """

    epsilon: float = 0.09
    delta: float = 0.3
    temperature: float = 1.0
    lossless = False

    def __post_init__(self):
        if not (0 < self.epsilon < 1 and 0 < self.delta < 1):
            raise ValueError(f"0 < epsilon < 1 and 0 < delta < 1 are needed, not {self.epsilon} and {self.delta}")
        Sampling(self.temperature)  # refuses one that is not above 0

    def accept(self, tree: Tree, logits: Tensor, generator: torch.Generator | None = None) -> tuple[list[int], int]:
        """logits (1 + n, V) -> (path, bonus); see `Acceptance`."""
        p = Sampling(self.temperature).probabilities(logits)
        path = self._longest(tree, p)
        last = 1 + path[-1] if path else 0
        return path, draw(p[last], 1, generator)[0]

    def threshold(self, p: Tensor) -> Tensor:
        """p (..., V) -> (...): what a token's probability must exceed. The likeliest always does."""
        return (self.delta * (-torch.special.entr(p).sum(-1)).exp()).clamp_max(self.epsilon)

    def _longest(self, tree: Tree, p: Tensor) -> list[int]:
        """The longest path of accepted nodes, the most probable of these."""
        rows = torch.tensor(tree.parents, dtype=torch.long, device=p.device) + 1
        chances = p[rows, torch.tensor(tree.tokens, dtype=torch.long, device=p.device)]
        accepted, logs = (chances > self.threshold(p)[rows]).tolist(), chances.log().tolist()
        reached = {ANCHOR: (0, 0.0)}  # node -> how deep it stands, log probability of its path
        for node, parent in enumerate(tree.parents):
            if accepted[node] and parent in reached:
                reached[node] = (tree.depths[node], reached[parent][1] + logs[node])
        return path_to(max(reached, key=reached.get), tree)


def path_to(node: int, tree: Tree) -> list[int]:
    """The nodes from the first level down to `node`; none for the anchor. IndexError for a node that there is not."""
    path = []
    while node != ANCHOR:
        path.append(node)
        node = tree.parents[node]
    return path[::-1]
