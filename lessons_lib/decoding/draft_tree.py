"""Draft trees (lesson 06): what a proposer drafts, and the model input that verifies it in one forward pass.

A proposer builds a DraftTree with `tree.add(parent, token)`. The numbers it gets back are those of the verification
and of the cache: node i is the i-th token after the root. The model input holds the uncomputed tokens (the root last),
then the nodes, then side tokens. A chain is a tree without branches.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from lessons_lib.caches.cache import Cache, causal_mask

ROOT = -1  # the last committed token, above the first draft tokens
MODES = ("greedy", "iid", "without_replacement")


@dataclass(frozen=True)
class Children:
    """The draft tokens below one node, as they were sampled: the lossless acceptance rule needs all of it.

    tokens: in the order in which they were sampled; with mode "iid" a token may come several times, but has one node.
    mode: "greedy" (any choice that is no sampling), "iid" (with replacement) or "without_replacement".
    q: (V,) the distribution they were sampled from; None for "greedy".
    """

    mode: str = "greedy"
    q: Tensor | None = None
    tokens: list[int] = field(default_factory=list)

    def __post_init__(self):
        if self.mode not in MODES:
            raise ValueError(f"mode {self.mode!r} is unknown; one of {', '.join(MODES)}")
        if self.mode != "greedy" and self.q is None:
            raise ValueError(f"mode {self.mode!r} needs q, the distribution that the tokens were sampled from")
        if self.q is not None and not self.q.isfinite().all():
            raise ValueError("q holds NaN or infinity; give probabilities")


@dataclass(frozen=True)
class SideTokens:
    """Tokens that are fed beside the tree for the proposer's own use; they are never committed.

    offsets: positions relative to the root's. sees[i][j]: whether side token i attends to side token j (to itself in
    any case). sees_nodes[i]: the tree nodes that side token i attends to. All attend to the committed text; no node
    attends to a side token.
    """

    tokens: Sequence[int] = ()
    offsets: Sequence[int] = ()
    sees: Sequence[Sequence[bool]] = ()
    sees_nodes: Sequence[Sequence[int]] = ()


@dataclass
class DraftTree:
    """Draft tokens for what follows the root. Node i holds tokens[i] at depths[i] >= 1, below parents[i] (or ROOT).

    The budget: max_nodes bounds nodes and side tokens together, max_depth the levels, max_offset how far behind the
    root a side token may be. may_branch(n) says whether n draft and side tokens may be fed with branches among them.
    What does not fit is not added. Of sampled children the last ones are left out, whatever their values.
    draft_calls: forward passes of a draft model that the tree took.
    """

    max_nodes: float = math.inf
    max_depth: float = math.inf
    max_offset: float = math.inf
    may_branch: Callable[[int], bool] = lambda count: True
    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    depths: list[int] = field(default_factory=list)
    children: dict[int, Children] = field(default_factory=dict)
    side: SideTokens = SideTokens()
    draft_calls: int = 0
    is_chain: bool = True  # every node is below the one before it, so that the causal mask will do
    _nodes: dict[tuple[int, int], int] = field(default_factory=dict)  # (parent, token) -> node

    @classmethod
    def chain(cls, tokens: Iterable[int]) -> "DraftTree":
        """A tree without branches and without a budget: each token follows the one before it."""
        tree = cls()
        tree.add_chain(tokens)
        return tree

    def add(self, parent: int, token: int, mode: str = "greedy", q: Tensor | None = None) -> int | None:
        """Add a draft token below `parent`. Returns its node; None where it does not fit.

        A token that `parent` has already keeps its node. mode, q: as in Children, the same for all tokens of a parent.
        """
        if not ROOT <= parent < len(self.tokens):
            raise ValueError(f"there is no node {parent} to add a token to; add parents first")
        known = self.child(parent, token)
        if known is not None and mode == "greedy":
            return known
        # Sampled tokens are counted before their values are looked at: keeping a repeated token where a new one
        # would not fit is a choice by value, and the verified text would no longer follow the target's distribution.
        if not self.fits(parent):
            return None
        children = self.children.get(parent) or Children(mode, q)
        if children.mode != mode:
            raise ValueError(f"the children of one node are of one mode, not {children.mode!r} and {mode!r}")
        self.children[parent] = children
        children.tokens.append(token)
        if known is not None:
            return known
        node = self._nodes[parent, token] = len(self.tokens)
        self.is_chain = self.is_chain and parent == node - 1
        self.tokens.append(token)
        self.parents.append(parent)
        self.depths.append(self.depth_of(parent) + 1)
        return node

    def add_chain(self, tokens: Iterable[int], parent: int | None = ROOT) -> None:
        """Add tokens below `parent`, each below the one before it, as many as fit."""
        for token in tokens:
            parent = self.add(parent, token)
            if parent is None:
                return

    def add_side(self, side: SideTokens) -> bool:
        """Add side tokens, all or none. Returns whether they fit. They come before or after nodes, and only once."""
        if not len(side.tokens) == len(side.offsets) == len(side.sees):
            raise ValueError("side tokens need one offset and one row of `sees` for each token")
        count = self.count + len(side.tokens)
        fits = count <= self.max_nodes and max(side.offsets, default=0) <= self.max_offset and self.may_branch(count)
        if fits:
            self.side = side
        return fits

    def fits(self, parent: int) -> bool:
        """Whether one more draft token may be added below `parent`."""
        if self.depth_of(parent) >= self.max_depth or self.count >= self.max_nodes:
            return False
        extends_chain = self.is_chain and parent == len(self.tokens) - 1 and not self.side.tokens
        return extends_chain or self.may_branch(self.count + 1)

    @property
    def count(self) -> int:
        """Tokens fed after the root: nodes and side tokens."""
        return len(self.tokens) + len(self.side.tokens)

    @property
    def depth(self) -> int:
        """Levels of the tree."""
        return max(self.depths, default=0)

    def depth_of(self, node: int) -> int:
        """0 for ROOT."""
        return 0 if node == ROOT else self.depths[node]

    def child(self, parent: int, token: int) -> int | None:
        """The node that continues `parent` with `token`, None if it was not drafted."""
        return self._nodes.get((parent, token))

    def path(self, node: int) -> list[int]:
        """The nodes from the first level down to `node`; none for ROOT."""
        path = []
        while node != ROOT:
            path.append(node)
            node = self.parents[node]
        return path[::-1]


@dataclass
class ModelInput:
    """The model input of one sequence in one forward pass.

    tokens (T), offsets (T) from the first uncomputed position, mask (T, S + T) bool or None for causal.
    wanted: the last `wanted` tokens get logits. after: layers whose hidden states are returned, too
    (1 = after the first; "final" = after the final norm, what the head reads).
    """

    tokens: list[int]
    offsets: list[int]
    mask: Tensor | None
    cache: Cache
    wanted: int
    after: tuple = ()


@dataclass
class ModelOutput:
    """The model output for one Block: logits (wanted, V) and the hidden states asked for, each (wanted, D).

    After a draft tree, row 0 is the root's, row 1 + i node i's, and the rows of side tokens follow.
    """

    logits: Tensor
    states: dict[int | str, Tensor] = field(default_factory=dict)


def plain_input(tokens: Sequence[int], cache: Cache, wanted: int = 1) -> ModelInput:
    """Tokens that follow what the cache holds, each attending to all before it: a prompt, or a part of one."""
    return ModelInput(list(tokens), list(range(len(tokens))), None, cache, wanted)


def make_input(uncomputed: list[int], tree: DraftTree, cache: Cache, after: tuple = ()) -> ModelInput:
    """The model input that verifies a tree. uncomputed: committed tokens that are not in the cache, the root last.

    The mask is only built where the causal one is not the right one.
    """
    root = len(uncomputed) - 1
    tokens = [*uncomputed, *tree.tokens, *tree.side.tokens]
    offsets = [*range(len(uncomputed)), *(root + depth for depth in (*tree.depths, *tree.side.offsets))]
    plain = tree.is_chain and not tree.side.tokens
    mask = None if plain else tree_mask(len(uncomputed), tree, cache.length())
    return ModelInput(tokens, offsets, mask, cache, len(tokens) - root, after)


def tree_mask(uncomputed: int, tree: DraftTree, cached: int) -> Tensor:
    """(T, S + T) bool: all attend to the committed text, nodes to their ancestors, side tokens to what they declare."""
    first = cached + uncomputed  # the cache entry of node 0
    own = first + len(tree.tokens)  # and of the first side token
    allow = torch.zeros(uncomputed + tree.count, cached + uncomputed + tree.count, dtype=torch.bool)
    allow[:uncomputed, :first] = causal_mask(uncomputed, first)
    allow[uncomputed:, :first] = True
    for node, parent in enumerate(tree.parents):
        row = allow[uncomputed + node]
        if parent != ROOT:
            row |= allow[uncomputed + parent]
        row[first + node] = True
    if tree.side.tokens:
        rows = allow[uncomputed + len(tree.tokens) :]
        rows[:, own:] = torch.as_tensor(tree.side.sees, dtype=torch.bool)
        rows[:, own:].fill_diagonal_(True)
        for row, nodes in zip(rows, tree.side.sees_nodes, strict=False):
            row[[first + node for node in nodes]] = True
    return allow
