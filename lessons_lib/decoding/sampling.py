"""Acceptance rules (lessons 01, 06): from a draft tree and the target's logits to accepted tokens and one more.

Greedy and Sampling are lossless: the text is what the target alone would have written, or is distributed like it.
Typical is lossy. Rules and proofs: Leviathan et al. 2022 (arXiv 2211.17192) for chains, SpecInfer (Miao et al. 2023,
arXiv 2305.09781) for trees. p and q are distributions after temperature, top-k and top-p.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from lessons_lib.decoding.draft_tree import MODES, ROOT, Children, DraftTree

TINY = 1e-12  # less than this is left over from rounding, not from probability


class Acceptance(Protocol):
    """lossless: whether the target's own distribution (or greedy text) is kept."""

    lossless: bool

    def accept(self, tree: DraftTree, logits: Tensor, generator: torch.Generator | None) -> tuple[list[int], int]:
        """logits (1 + n, V), row 0 the root's, row 1 + i node i's -> (path of nodes, bonus token).

        RuntimeError of torch where a token is to be drawn by logits that hold NaN.
        """
        ...


@dataclass(frozen=True)
class Greedy:
    """Follow the target's most probable token as long as somebody guessed it: the text of plain greedy decoding."""

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
    """logits (n, V) -> the likeliest token of each row, the first of equals.

    By numpy on a CPU, where torch takes several times as long for a row of tens of thousands. It knows no bf16, but the
    bits of positive floats, read as integers, are in the order of their values, and above those of negative ones. Where
    the best is not above 0, values are compared. Nobody looks for NaN.
    """
    if not logits.is_cpu:
        return logits.argmax(-1).tolist()
    logits = logits.detach()
    if logits.dtype in (torch.bfloat16, torch.float16):
        bits = logits.view(torch.int16).numpy()
        best = bits.argmax(-1).tolist()
        if all(row[token] > 0 for row, token in zip(bits, best, strict=True)):
            return best
        logits = logits.float()
    return logits.numpy().argmax(-1).tolist()


@dataclass(frozen=True)
class Sampling:
    """Sample from softmax(logits / temperature), kept to the top_k tokens and to top_p of the mass.

    top_k 0 and top_p 1.0 leave everything in; temperature 0 is refused, since Greedy is what it means.
    Raises ValueError for a temperature, top_k or top_p out of range.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    lossless = True

    def __post_init__(self):
        if not self.temperature > 0:
            raise ValueError(f"temperature must be above 0, not {self.temperature}; for the argmax use Greedy()")
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
        """(..., V) -> (..., V) in single precision or better: what plain sampling would draw from."""
        scores = logits.to(torch.promote_types(logits.dtype, torch.float32)) / self.temperature
        if 0 < self.top_k < scores.shape[-1]:
            least = scores.topk(self.top_k).values[..., -1:]
            scores = scores.masked_fill(scores < least, float("-inf"))
        p = scores.softmax(-1)
        return p if self.top_p == 1 else nucleus(p, self.top_p)


def nucleus(p: Tensor, top_p: float) -> Tensor:
    """Keep the fewest most probable tokens of p (..., V) that reach `top_p`, renormalised (Holtzman 2019)."""
    ordered, order = p.sort(descending=True, dim=-1)
    kept = ordered.cumsum(-1) - ordered < top_p  # mass before the token: the first is always kept
    p = torch.zeros_like(p).scatter(-1, order, ordered * kept)
    return p / p.sum(-1, keepdim=True)


def choose_child(
    p: Tensor, children: Sequence[int], q: Tensor | None, mode: str, generator: torch.Generator | None
) -> tuple[int, bool]:
    """Multi-round rejection at one node -> (token, whether it is one of `children`), distributed exactly as p (V,).

    q (V,): what the children were sampled from; mode "greedy" needs none. RuntimeError of torch for a p that holds NaN.
    After a rejection what is still owed is the part of p above the proposal, renormalised. The strict < keeps
    a token of probability 0 out even when the uniform number is exactly 0.
    """
    for token in children:
        if mode == "greedy":
            accepted = _uniform(p, generator) < p[token]
            w = torch.zeros_like(p).index_fill_(0, torch.tensor([token], device=p.device), 1.0)
        else:
            w = q.to(p)
            accepted = _uniform(p, generator) * w[token] < p[token]
        if accepted:
            return token, True
        p = _owed(p, w)
        if mode == "without_replacement":
            q = q.index_fill(0, torch.tensor([token], device=q.device), 0.0)
            q = q / q.sum().clamp_min(TINY)
    return draw(p, 1, generator)[0], False


def _owed(p: Tensor, w: Tensor) -> Tensor:
    """normalise((p - w)+); p itself when rounding is all that is left."""
    rest = (p - w).clamp_min(0)
    mass = rest.sum()
    return rest / mass if mass > TINY else p


def _uniform(p: Tensor, generator: torch.Generator | None) -> Tensor:
    return torch.rand((), dtype=p.dtype, device=_device(p, generator), generator=generator).to(p.device)


def draw(p: Tensor, count: int, generator: torch.Generator | None, replacement: bool = False) -> list[int]:
    """p (V,) -> `count` tokens in draw order. RuntimeError of torch for a p that holds NaN, or too little mass.

    The generator draws on its own device, which need not be the model's.
    """
    p = p.to(_device(p, generator))
    return torch.multinomial(p, count, replacement=replacement, generator=generator).tolist()


def _device(p: Tensor, generator: torch.Generator | None) -> torch.device:
    return p.device if generator is None else generator.device


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

    def accept(
        self, tree: DraftTree, logits: Tensor, generator: torch.Generator | None = None
    ) -> tuple[list[int], int]:
        """logits (1 + n, V) -> (path, bonus); see `Acceptance`."""
        p = Sampling(self.temperature).probabilities(logits)
        path = self._longest(tree, p)
        last = 1 + path[-1] if path else 0
        return path, draw(p[last], 1, generator)[0]

    def threshold(self, p: Tensor) -> Tensor:
        """p (..., V) -> (...): what a token's probability must exceed. The likeliest always does."""
        return (self.delta * (-torch.special.entr(p).sum(-1)).exp()).clamp_max(self.epsilon)

    def _longest(self, tree: DraftTree, p: Tensor) -> list[int]:
        """The longest path of accepted nodes, the most probable of these."""
        rows = torch.tensor(tree.parents, dtype=torch.long, device=p.device) + 1
        chances = p[rows, torch.tensor(tree.tokens, dtype=torch.long, device=p.device)]
        accepted, logs = (chances > self.threshold(p)[rows]).tolist(), chances.log().tolist()
        reached = {ROOT: (0, 0.0)}  # node -> how deep it stands, log probability of its path
        for node, parent in enumerate(tree.parents):
            if accepted[node] and parent in reached:
                reached[node] = (tree.depths[node], reached[parent][1] + logs[node])
        return tree.path(max(reached, key=reached.get))


def sample_children(
    tree: DraftTree, parent: int, q: Tensor, count: int, mode: str, generator: torch.Generator | None
) -> list[int]:
    """Sample draft tokens below `parent` from q (V,) and add them -> their nodes, in the order sampled.

    `count` of them if "iid", where equal tokens share a node, else at most as many as have q > 0; those that do not
    fit the tree's budget are left out, the last ones first. RuntimeError of torch for a q without mass, or with NaN.
    """
    with_replacement = mode == "iid"
    count = count if with_replacement else min(count, int(q.count_nonzero()))
    tokens = draw(q, count, generator, with_replacement)
    nodes = (tree.add(parent, token, mode, q) for token in tokens)
    return [node for node in nodes if node is not None]


def check_sampling(mode: str, sampling: Sampling | None) -> None:
    """ValueError for an unknown mode, and for a distribution to sample from where nothing is sampled."""
    if mode not in MODES:
        raise ValueError(f"mode {mode!r} is unknown; one of {', '.join(MODES)}")
    if mode == "greedy" and sampling:
        raise ValueError('mode "greedy" samples nothing; choose mode "iid" or leave `sampling` out')
