"""Draft trees (lesson 06): the draft tokens of one step, and the model input that verifies them in one forward pass.

A proposer builds a DraftTree with `tree.add(parent, token)`, which returns the number of the new node. Nodes are
numbered from 0 in the order they were added, and logits and cache entries follow the same order. The model input holds
the uncomputed tokens (the root last), then the nodes, then side tokens. A chain is a tree without branches.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from lessons_lib.caches.cache import Cache, causal_mask

ROOT = -1  # the last committed token, parent of the first draft tokens
MODES = ("unsampled", "iid", "without_replacement")


@dataclass(frozen=True)
class Children:
    """The draft tokens below one node and how they were sampled. The lossless acceptance rule needs both.

    mode: "iid" (with replacement), "without_replacement", or "unsampled" for tokens not sampled from a q: the argmax, a
    copy, any token that does not depend on the random numbers of the acceptance rule.
    q: (V,) the distribution the tokens were sampled from; None for "unsampled".
    tokens: in the order they were sampled. With "iid" a token may be listed several times; it still has only one node.
    """

    mode: str = "unsampled"
    q: Tensor | None = None
    tokens: list[int] = field(default_factory=list)

    def __post_init__(self):
        if self.mode not in MODES:
            raise ValueError(f"mode {self.mode!r} is unknown; one of {', '.join(MODES)}")
        if self.mode != "unsampled" and self.q is None:
            raise ValueError(f"mode {self.mode!r} needs q, the distribution that the tokens were sampled from")


@dataclass(frozen=True)
class SideTokens:
    """Extra tokens that a proposer adds to the forward pass for its own use. They are never committed.

    offsets: positions relative to the root. sees[i][j]: side token i attends to side token j (always to itself).
    sees_nodes[i]: tree nodes that side token i attends to. All side tokens attend to the committed text. No tree node
    attends to a side token.
    """

    tokens: Sequence[int] = ()
    offsets: Sequence[int] = ()
    sees: Sequence[Sequence[bool]] = ()
    sees_nodes: Sequence[Sequence[int]] = ()


@dataclass
class DraftTree:
    """A tree of draft tokens after the root. Node i has token tokens[i], depth depths[i] >= 1 and parent parents[i].

    Budget: max_nodes limits nodes and side tokens together, max_depth the levels, max_offset the distance of a side
    token from the root. may_branch(n): whether the cache supports n draft and side tokens that are not one chain.
    Tokens that do not fit are not added. Of sampled children the last ones are dropped, whatever their values.
    cache: the target's own cache of this sequence, for proposers that draft with some of the target's layers.
    first_layer, states: the pass starts at this layer, with states (T, D) of the uncomputed tokens and the nodes that
    the proposer computed already. None: it starts with the embeddings, at layer 0.
    draft_calls: forward passes of a draft model used to build the tree.
    """

    max_nodes: float = math.inf
    max_depth: float = math.inf
    max_offset: float = math.inf
    may_branch: Callable[[int], bool] = lambda count: True
    cache: Cache | None = None
    first_layer: int = 0
    states: Tensor | None = None
    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    depths: list[int] = field(default_factory=list)
    children: dict[int, Children] = field(default_factory=dict)
    side: SideTokens = SideTokens()
    draft_calls: int = 0
    is_chain: bool = True  # every node is the child of the one before it, so the causal mask is enough
    _nodes: dict[tuple[int, int], int] = field(default_factory=dict)  # (parent, token) -> node

    @classmethod
    def chain(cls, tokens: Iterable[int]) -> "DraftTree":
        """A chain of draft tokens, without a budget."""
        tree = cls()
        tree.add_chain(tokens)
        return tree

    def add(self, parent: int, token: int, mode: str = "unsampled", q: Tensor | None = None) -> int | None:
        """Add a draft token below `parent` -> its node, or None if it does not fit the budget.

        Adding a token that `parent` already has returns the existing node. mode, q: see Children; all children of one
        parent have the same mode.
        """
        if not ROOT <= parent < len(self.tokens):
            raise ValueError(f"there is no node {parent} to add a token to; add parents first")
        known = self.child(parent, token)
        if known is not None and mode == "unsampled":
            return known
        # For sampled tokens the budget decides before the value does. If a repeated token were kept where a new one
        # does not fit, the choice would depend on the value, and the output would not follow the target's distribution.
        if not self.fits(parent):
            return None
        children = self.children.get(parent) or Children(mode, q)
        if children.mode != mode:
            raise ValueError(f"the children of one node are of one mode, not {children.mode!r} and {mode!r}")
        # Record the draw, also of a repeated token
        self.children[parent] = children
        children.tokens.append(token)
        if known is not None:
            return known
        # Append a new node
        node = self._nodes[parent, token] = len(self.tokens)
        self.is_chain = self.is_chain and parent == node - 1
        self.tokens.append(token)
        self.parents.append(parent)
        self.depths.append(self.depth_of(parent) + 1)
        return node

    def add_chain(self, tokens: Iterable[int]) -> None:
        """Add a chain of tokens below the root, as many as fit the budget."""
        node = ROOT
        for token in tokens:
            node = self.add(node, token)
            if node is None:
                return

    def add_side(self, side: SideTokens) -> bool:
        """Add all side tokens, or none if they do not fit -> whether they were added. Call it at most once per tree.

        It may be called before or after nodes are added.
        """
        if not len(side.tokens) == len(side.offsets) == len(side.sees):
            raise ValueError("side tokens need one offset and one row of `sees` for each token")
        count = self.count + len(side.tokens)
        fits = count <= self.max_nodes and max(side.offsets, default=0) <= self.max_offset and self.may_branch(count)
        if fits:
            self.side = side
        return fits

    def fits(self, parent: int) -> bool:
        """Whether the budget allows one more draft token below `parent`."""
        if self.depth_of(parent) >= self.max_depth or self.count >= self.max_nodes:
            return False
        extends_chain = self.is_chain and parent == len(self.tokens) - 1 and not self.side.tokens
        return extends_chain or self.may_branch(self.count + 1)

    @property
    def count(self) -> int:
        """Number of nodes and side tokens."""
        return len(self.tokens) + len(self.side.tokens)

    @property
    def depth(self) -> int:
        """Number of levels, without the root."""
        return max(self.depths, default=0)

    def depth_of(self, node: int) -> int:
        """Depth of a node: 0 for ROOT."""
        return 0 if node == ROOT else self.depths[node]

    def child(self, parent: int, token: int) -> int | None:
        """The child of `parent` that holds `token`, or None."""
        return self._nodes.get((parent, token))

    def path(self, node: int) -> list[int]:
        """The nodes from the first level down to `node`. Empty for ROOT."""
        path = []
        while node != ROOT:
            path.append(node)
            node = self.parents[node]
        return path[::-1]


@dataclass
class ModelInput:
    """The input of one sequence to one forward pass.

    tokens (T). offsets (T): positions relative to the first uncomputed one. mask (T, S + T) bool; None is causal.
    wanted: logits are computed for the last `wanted` tokens. after: layers whose hidden states are returned as well
    (1: after the first layer; "final": after the final norm, the input of the LM head).
    first_layer, states: the layer at which the tokens enter, and their states (T, D) before it. None: the embeddings.
    """

    tokens: list[int]
    offsets: list[int]
    mask: Tensor | None
    cache: Cache
    wanted: int
    after: tuple = ()
    first_layer: int = 0
    states: Tensor | None = None

    def __post_init__(self) -> None:
        if early := [name for name in self.after if name != "final" and name <= self.first_layer]:
            first = self.first_layer + 1
            raise ValueError(f"no state is returned after layer {early[0]}; ask for layer {first} or later, or 'final'")


@dataclass
class ModelOutput:
    """The output for one ModelInput: logits (wanted, V) and requested hidden states {layer: (wanted, D)}.

    With a draft tree, row 0 belongs to the root and row 1 + i to node i. The rows of side tokens come last.
    """

    logits: Tensor
    states: dict[int | str, Tensor] = field(default_factory=dict)


def plain_input(tokens: Sequence[int], cache: Cache, wanted: int = 1) -> ModelInput:
    """The model input of tokens that follow the cached ones under a causal mask: a prompt, a part of one, a chain."""
    return ModelInput(list(tokens), list(range(len(tokens))), None, cache, wanted)


def make_input(uncomputed: list[int], tree: DraftTree, cache: Cache, after: tuple = ()) -> ModelInput:
    """The model input that verifies a tree. uncomputed: committed tokens that are not in the cache, the root last.

    A chain without side tokens needs no mask of its own, since it is causal.
    """
    root = len(uncomputed) - 1
    tokens = [*uncomputed, *tree.tokens, *tree.side.tokens]
    offsets = [*range(len(uncomputed)), *(root + depth for depth in (*tree.depths, *tree.side.offsets))]
    plain = tree.is_chain and not tree.side.tokens
    mask = None if plain else tree_mask(len(uncomputed), tree, cache.length())
    wanted = len(tokens) - root
    return ModelInput(tokens, offsets, mask, cache, wanted, after, tree.first_layer, tree.states)


def tree_mask(uncomputed: int, tree: DraftTree, cached: int) -> Tensor:
    """Attention mask (T, S + T) bool of a draft tree. uncomputed, cached: numbers of tokens; T includes the tree.

    All tokens attend to the committed text, nodes also to themselves and their ancestors, side tokens as in SideTokens.
    """
    first = cached + uncomputed  # column of node 0
    own = first + len(tree.tokens)  # column of the first side token
    allow = torch.zeros(uncomputed + tree.count, cached + uncomputed + tree.count, dtype=torch.bool)
    # The committed text: causal among the uncomputed tokens, all of it for nodes and side tokens
    allow[:uncomputed, :first] = causal_mask(uncomputed, first)
    allow[uncomputed:, :first] = True
    # A node attends to whatever its parent attends to, and to itself
    for node, parent in enumerate(tree.parents):
        row = allow[uncomputed + node]
        if parent != ROOT:
            row |= allow[uncomputed + parent]
        row[first + node] = True
    # Side tokens attend to side tokens (`sees`) and to nodes (`sees_nodes`)
    if tree.side.tokens:
        rows = allow[uncomputed + len(tree.tokens) :]
        rows[:, own:] = torch.as_tensor(tree.side.sees, dtype=torch.bool)
        rows[:, own:].fill_diagonal_(True)
        for row, nodes in zip(rows, tree.side.sees_nodes, strict=False):
            row[[first + node for node in nodes]] = True
    return allow
