"""Acceptance rules (lessons 01, 06): verify a draft tree with the target's logits -> accepted path and bonus token.

Greedy and Sampling are lossless: the output equals the target's own greedy output, or follows its distribution.
Typical is lossy. Rules and proofs: Leviathan et al. 2022 (arXiv 2211.17192) for chains, SpecInfer (Miao et al. 2023,
arXiv 2305.09781) for trees. p and q are the target and draft distributions after temperature, top-k and top-p.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from lessons_lib.decoding.draft_tree import ROOT, Children, DraftTree
from lessons_lib.quantization.cpu.argmax import argmax_on_cpu

TINY = 1e-12  # a smaller probability mass is a rounding error
COLDEST = 1e-6  # the lowest temperature: logits divided by a much smaller one overflow


class Acceptance(Protocol):
    """An acceptance rule. lossless: whether the output follows the target's own distribution (or greedy output)."""

    lossless: bool

    def accept(self, tree: DraftTree, logits: Tensor, generator: torch.Generator | None) -> tuple[list[int], int]:
        """Verify a tree of n nodes -> (path of accepted nodes, bonus token).

        logits (1 + n, V): row 0 belongs to the root, row 1 + i to node i.
        """
        ...


@dataclass(frozen=True)
class Greedy:
    """Accept draft tokens as long as they are the target's argmax: the output of plain greedy decoding."""

    lossless = True

    def accept(
        self, tree: DraftTree, logits: Tensor, generator: torch.Generator | None = None
    ) -> tuple[list[int], int]:
        """logits (1 + n, V) -> (path, bonus); see `Acceptance`."""
        choices = top_tokens(logits)
        path, node = [], ROOT
        while (child := tree.child(node, choices[node + 1])) is not None:
            path.append(child)
            node = child
        return path, choices[node + 1]


def top_tokens(logits: Tensor) -> list[int]:
    """The argmax of each row of logits (n, V) -> n tokens; among equal logits the first. NaN is not handled."""
    return argmax_on_cpu(logits) if logits.is_cpu else logits.argmax(-1).tolist()


@dataclass(frozen=True)
class Sampling:
    """Sample from softmax(logits / temperature) after top-k and top-p filtering; drafts are verified losslessly.

    top_k 0 and top_p 1.0 filter nothing. temperature: at least 1e-6; use Greedy for the argmax.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    lossless = True

    def __post_init__(self):
        if not COLDEST <= self.temperature < math.inf:
            raise ValueError(
                f"temperature must be at least {COLDEST} and finite, not {self.temperature}; "
                "for the argmax use Greedy()"
            )
        if self.top_k < 0 or not 0 < self.top_p <= 1:
            raise ValueError(f"top_k >= 0 and 0 < top_p <= 1 are needed, not {self.top_k} and {self.top_p}")

    def accept(
        self, tree: DraftTree, logits: Tensor, generator: torch.Generator | None = None
    ) -> tuple[list[int], int]:
        """logits (1 + n, V) -> (path, bonus); see `Acceptance`."""
        path, node = [], ROOT
        while True:
            p = self.probabilities(logits[node + 1])
            below = tree.children.get(node, Children())
            token, accepted = choose_child(p, below.tokens, below.q, below.mode, generator)
            if not accepted:
                return path, token
            node = tree.child(node, token)
            path.append(node)

    def probabilities(self, logits: Tensor) -> Tensor:
        """Logits (..., V) -> the distribution (..., V) that plain sampling uses, in fp32 or fp64."""
        scores = logits.to(torch.promote_types(logits.dtype, torch.float32)) / self.temperature
        # Top-k keeps every token as large as the k-th largest
        if 0 < self.top_k < scores.shape[-1]:
            least = scores.topk(self.top_k).values[..., -1:]
            scores = scores.masked_fill(scores < least, float("-inf"))
        p = scores.softmax(-1)
        return p if self.top_p == 1 else nucleus(p, self.top_p)


def nucleus(p: Tensor, top_p: float) -> Tensor:
    """Top-p filtering of p (..., V): keep the smallest set of most likely tokens whose mass reaches `top_p`, and
    renormalise (Holtzman et al. 2019)."""
    ordered, order = p.sort(descending=True, dim=-1)
    kept = ordered.cumsum(-1) - ordered < top_p  # mass before the token
    kept[..., 0] = True  # also if top_p rounds to 0 in this precision
    p = torch.zeros_like(p).scatter(-1, order, ordered * kept)
    return p / p.sum(-1, keepdim=True)


def choose_child(
    p: Tensor, children: Sequence[int], q: Tensor | None, mode: str, generator: torch.Generator | None
) -> tuple[int, bool]:
    """Multi-round rejection sampling at one node -> (token, accepted). The token follows p (V,).

    children: draft tokens in the order sampled. q (V,): the distribution that the first was sampled from; None in mode
    "unsampled", where draft tokens were chosen without sampling.
    A child that was sampled from w is accepted with probability min(1, p / w); else p becomes the residual,
    normalise((p - w)+), for the next child, and at last for a token of its own. That is exact: a token x is sampled and
    accepted with probability min(p, w)(x), and comes out after a rejection with (p - w)+(x); together p(x). By
    induction it holds for several children, as long as drafting used none of the random numbers of this rule.
    """
    for token in children:
        # w: q, or for an unsampled token all mass on this token
        if mode == "unsampled":
            w = torch.zeros_like(p).index_fill_(0, torch.tensor([token], device=p.device), 1.0)
        else:
            w = q.to(p)
        # Accept with probability min(1, p / w). The strict < rejects a token of probability 0 even if the uniform
        # number is exactly 0.
        if _uniform(p, generator) * w[token] < p[token]:
            return token, True
        # After a rejection, continue with the residual of p
        p = residual(p, w)
        # Without replacement, the next child was sampled from q without this token
        if mode == "without_replacement":
            q = q.index_fill(0, torch.tensor([token], device=q.device), 0.0)
            q = q / q.sum().clamp_min(TINY)
    # All children rejected: sample from what is left of p
    return draw(p, 1, generator)[0], False


def residual(p: Tensor, w: Tensor) -> Tensor:
    """The residual distribution normalise((p - w)+); p itself where p and w differ only by rounding."""
    rest = (p - w).clamp_min(0)
    mass = rest.sum()
    return rest / mass if mass > TINY else p


def _uniform(p: Tensor, generator: torch.Generator | None) -> Tensor:
    return torch.rand((), dtype=p.dtype, device=_device(p, generator), generator=generator).to(p.device)


def draw(p: Tensor, count: int, generator: torch.Generator | None, replacement: bool = False) -> list[int]:
    """Sample `count` tokens from p (V,), in the order sampled. The generator may be on another device than the model.

    Raises RuntimeError if p has NaN, or too few tokens of positive probability.
    """
    p = p.to(_device(p, generator))
    return torch.multinomial(p, count, replacement=replacement, generator=generator).tolist()


def _device(p: Tensor, generator: torch.Generator | None) -> torch.device:
    return p.device if generator is None else generator.device


@dataclass(frozen=True)
class Typical:
    """Typical acceptance: accept a draft token if p > min(epsilon, delta exp(-H)), H the entropy of p in nats.

    p = softmax(logits / temperature). The longest path of accepted tokens is committed, among equally long ones the
    most likely; the bonus token is sampled from p. Without draft tokens this is plain sampling. With draft tokens
    the output favours them and no longer follows p, so the rule is lossy. Source: Medusa (Cai et al. 2024, arXiv
    2401.10774).
    """

    epsilon: float = 0.09
    delta: float = 0.3
    temperature: float = 1.0
    lossless = False

    def __post_init__(self):
        if not (0 < self.epsilon < 1 and 0 < self.delta < 1):
            raise ValueError(f"0 < epsilon < 1 and 0 < delta < 1 are needed, not {self.epsilon} and {self.delta}")
        Sampling(self.temperature)  # refuses one that it cannot use

    def accept(
        self, tree: DraftTree, logits: Tensor, generator: torch.Generator | None = None
    ) -> tuple[list[int], int]:
        """logits (1 + n, V) -> (path, bonus); see `Acceptance`."""
        p = Sampling(self.temperature).probabilities(logits)
        path = self._longest(tree, p)
        last = 1 + path[-1] if path else 0
        return path, draw(p[last], 1, generator)[0]

    def threshold(self, p: Tensor) -> Tensor:
        """p (..., V) -> threshold (...) that the probability of a draft token must exceed. The argmax always does."""
        return (self.delta * (-torch.special.entr(p).sum(-1)).exp()).clamp_max(self.epsilon)

    def _longest(self, tree: DraftTree, p: Tensor) -> list[int]:
        """The longest path of accepted nodes; among equally long ones the most likely."""
        # Whether each node passes the threshold at its parent
        rows = torch.tensor(tree.parents, dtype=torch.long, device=p.device) + 1
        chances = p[rows, torch.tensor(tree.tokens, dtype=torch.long, device=p.device)]
        accepted, logs = (chances > self.threshold(p)[rows]).tolist(), chances.log().tolist()
        # Nodes whose ancestors all pass as well
        reached = {ROOT: (0, 0.0)}  # node -> depth, log probability of its path
        for node, parent in enumerate(tree.parents):
            if accepted[node] and parent in reached:
                reached[node] = (tree.depths[node], reached[parent][1] + logs[node])
        return tree.path(max(reached, key=reached.get))


def sample_children(
    tree: DraftTree, parent: int, q: Tensor, count: int, mode: str, generator: torch.Generator | None
) -> list[int]:
    """Sample `count` draft tokens from q (V,) and add them below `parent` -> their nodes, in the order sampled.

    mode "iid": equal tokens share a node, which is then returned several times. "without_replacement": fewer tokens if
    q has fewer than `count` of positive probability. The last tokens are dropped if the tree's budget is too small.
    """
    with_replacement = mode == "iid"
    count = count if with_replacement else min(count, int(q.count_nonzero()))
    tokens = draw(q, count, generator, with_replacement)
    nodes = (tree.add(parent, token, mode, q) for token in tokens)
    return [node for node in nodes if node is not None]
