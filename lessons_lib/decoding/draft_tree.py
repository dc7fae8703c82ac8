"""Draft trees (lesson 06): what a proposer drafts, and what it may add beside. A chain is a tree without branches."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

ANCHOR = -1  # parent of the first guesses: the last committed token
MODES = ("point", "iid", "without_replacement")


def check_mode(mode: str) -> None:
    """ValueError for a mode that is none of MODES."""
    if mode not in MODES:
        raise ValueError(f"mode {mode!r} is unknown; one of {', '.join(MODES)}")


@dataclass(frozen=True)
class Scratch:
    """Tokens fed beside the tree for the proposer's own use; their cache entries are always dropped.

    offsets: positions relative to the anchor's. sees[i][j]: token i may attend to scratch token j (itself in
    any case). sees_tree[i]: tree nodes, in the proposer's numbering, that token i may attend to. All see the
    committed text and the anchor; the tree never sees scratch.
    """

    tokens: Sequence[int]
    offsets: Sequence[int]
    sees: Sequence[Sequence[bool]]
    sees_tree: Sequence[Sequence[int]] = ()


@dataclass(frozen=True)
class Proposal:
    """Guesses for what follows the anchor: node i holds tokens[i] below parents[i] (ANCHOR, or a node < i).

    mode: how they were drawn, which decides the lossless acceptance rule: "point" (any deterministic choice),
    "iid" or "without_replacement" draws from q. q: parent -> distribution (V,) its children were drawn from.
    draws: parent -> child tokens in draw order, if it differs from their order in tokens.
    ValueError for anything else than such a tree.
    """

    tokens: Sequence[int] = ()
    parents: Sequence[int] = ()
    mode: str = "point"
    q: Mapping[int, Tensor] = field(default_factory=dict)
    draws: Mapping[int, Sequence[int]] = field(default_factory=dict)
    scratch: Scratch | None = None
    draft_calls: int = 0

    @classmethod
    def chain(cls, tokens: Sequence[int], **rest) -> "Proposal":
        """A tree without branches: each token follows the one before it. rest: other fields. ValueError as theirs."""
        return cls(tokens, range(-1, len(tokens) - 1), **rest)

    def __post_init__(self):
        if len(self.tokens) != len(self.parents):
            raise ValueError(f"{len(self.tokens)} tokens but {len(self.parents)} parents: give each node its parent")
        if bad := [i for i, p in enumerate(self.parents) if not ANCHOR <= p < i]:
            raise ValueError(f"node {bad[0]} stands before its parent {self.parents[bad[0]]}: list parents first")
        check_mode(self.mode)
        if self.mode != "point" and (lost := set(self.parents) - set(self.q)):
            raise ValueError(f"mode {self.mode!r} needs the row of q for every parent; {min(lost)} has none")
        if any(not row.isfinite().all() for row in self.q.values()):
            raise ValueError("a row of q holds NaN or infinity; give probabilities")
        if self.scratch and not len(self.scratch.tokens) == len(self.scratch.offsets) == len(self.scratch.sees):
            raise ValueError("scratch needs one offset and one row of `sees` for each token")


NO_GUESSES = Proposal()  # for all rows and steps, since checking one takes time; change nothing of it


@dataclass
class Tree:
    """A proposal made ready for one forward: merged, pruned, with depths and children looked up.

    parents, depths: of every node, ANCHOR and 1 for those of the first level. draws, q: as of a Proposal, q (V,) each.
    merged[i] is the node that the proposer's node i became, None if it was cut off. nodes: (parent, token) -> node.
    """

    mode: str = "point"
    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    depths: list[int] = field(default_factory=list)
    draws: dict[int, list[int]] = field(default_factory=dict)
    q: dict[int, Tensor] = field(default_factory=dict)
    merged: list[int | None] = field(default_factory=list)
    nodes: dict[tuple[int, int], int] = field(default_factory=dict)

    @classmethod
    def of(cls, proposal: Proposal, limit: int) -> "Tree":
        """Merge equal siblings and drop nodes deeper than `limit` (tokens that may still be committed)."""
        tree = cls(mode=proposal.mode)
        for token, parent in zip(proposal.tokens, proposal.parents, strict=True):
            above = ANCHOR if parent == ANCHOR else tree.merged[parent]
            fits = above is not None and tree._depth(above) < limit
            tree.merged.append(tree.add(token, above) if fits else None)
        for parent, order in _draw_orders(proposal).items():
            node = ANCHOR if parent == ANCHOR else tree.merged[parent]
            if node in tree.draws:
                tree.draws[node] += order
                tree.q |= {node: proposal.q[parent]} if parent in proposal.q else {}
        return tree

    def add(self, token: int, parent: int) -> int:
        """The node of `token` below `parent`, made if it is new. IndexError for a parent that there is not."""
        if (parent, token) not in self.nodes:
            self.nodes[parent, token] = len(self.tokens)
            self.draws.setdefault(parent, [])
            self.tokens.append(token)
            self.parents.append(parent)
            self.depths.append(self._depth(parent) + 1)
        return self.nodes[parent, token]

    def first_chain(self) -> "Tree":
        """The first draw below the anchor, the first below that, and so on, without all other nodes."""
        path = [ANCHOR]
        while order := self.draws.get(path[-1]):
            path.append(self.nodes[path[-1], order[0]])
        number = {node: depth - 1 for depth, node in enumerate(path)}  # the anchor keeps its own
        chain = Tree(self.mode, q={number[node]: q for node, q in self.q.items() if node in number})
        for above, node in zip(path, path[1:], strict=False):
            chain.add(self.tokens[node], number[above])
            chain.draws[number[above]] = [self.tokens[node]]
        chain.merged = [number.get(node) for node in self.merged]
        return chain

    def _depth(self, node: int) -> int:
        return 0 if node == ANCHOR else self.depths[node]

    @property
    def is_chain(self) -> bool:
        """Whether every node follows the one before it, so that plain causal attention will do."""
        return all(parent == node - 1 for node, parent in enumerate(self.parents))

    def child(self, parent: int, token: int) -> int | None:
        """The node that continues `parent` with `token`, None if nobody guessed it."""
        return self.nodes.get((parent, token))


def _draw_orders(proposal: Proposal) -> dict[int, Sequence[int]]:
    """parent -> its children's tokens in the order they were drawn."""
    orders: dict[int, list[int]] = {}
    for token, parent in zip(proposal.tokens, proposal.parents, strict=True):
        orders.setdefault(parent, []).append(token)
    return orders | {parent: order for parent, order in proposal.draws.items() if parent in orders}


@dataclass
class Growing:
    """Fields of a Proposal, of which the loop makes the Tree, growing by a level per draft forward.

    depth: levels so far; level: the nodes of the deepest. Equal siblings are one node: the draft reads them once.
    """

    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    draws: dict[int, list[int]] = field(default_factory=dict)
    q: dict[int, Tensor] = field(default_factory=dict)
    level: list[int] = field(default_factory=lambda: [ANCHOR])
    depth: int = 0

    def grow(self, drawn: dict[int, list[int]]) -> None:
        """Add the next level. drawn: node of the deepest level -> tokens below it, in draw order."""
        first = len(self.tokens)
        for parent, tokens in drawn.items():
            different = list(dict.fromkeys(tokens))
            self.tokens += different
            self.parents += [parent] * len(different)
        self.draws |= drawn
        self.level, self.depth = list(range(first, len(self.tokens))), self.depth + 1
