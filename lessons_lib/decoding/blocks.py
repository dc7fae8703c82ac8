"""The model input of one sequence (lesson 06): which tokens, at which offsets, seeing what; and what comes back.

Tokens stand in the order in which the cache will hold them: the uncomputed tokens, the tree, then side tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from lessons_lib.caches.cache import Cache, causal_mask
from lessons_lib.decoding.draft_tree import Scratch, Tree


@dataclass
class Block:
    """tokens (T), offsets (T) from the first entry the cache lacks, mask (T, S + T) bool or None for causal.

    wanted: logits are asked for the last `wanted` tokens. after: layers whose states are asked for, too
    (1 = after the first; "final" = after the final norm, what the head reads).
    """

    tokens: list[int]
    offsets: list[int]
    mask: Tensor | None
    cache: Cache
    wanted: int
    after: tuple = ()


@dataclass
class Scores:
    """What a target says to a block: logits (wanted, V) and the states asked for, each (wanted, D)."""

    logits: Tensor
    states: dict[int | str, Tensor] = field(default_factory=dict)


def plain_block(tokens: Sequence[int], cache: Cache, wanted: int = 1) -> Block:
    """Tokens right behind what the cache holds, each seeing all before it: a prompt, or a part of one."""
    return Block(list(tokens), list(range(len(tokens))), None, cache, wanted)


def make_block(lacking: list[int], tree: Tree, scratch: Scratch | None, cache: Cache, after: tuple = ()) -> Block:
    """Lay out one row's forward; the mask is only built where plain causal attention is not the right one.

    lacking: committed tokens that the cache lacks, the anchor last. Errors as `tree_mask`.
    """
    anchor = len(lacking) - 1
    tokens = lacking + tree.tokens
    offsets = list(range(len(lacking))) + [anchor + depth for depth in tree.depths]
    if scratch:
        tokens = tokens + list(scratch.tokens)
        offsets = offsets + [anchor + offset for offset in scratch.offsets]
    mask = None
    if scratch or not tree.is_chain:
        mask = tree_mask(len(lacking), tree, scratch, cache.length())
    return Block(tokens, offsets, mask, cache, len(tokens) - anchor, after)


def tree_mask(lacking: int, tree: Tree, scratch: Scratch | None, cached: int) -> Tensor:
    """(T, S + T) bool: everyone sees the committed text; nodes their ancestors, scratch what it declares.

    Of the tree its tokens and parents are read, so that one in the making will do, and for scratch that sees nodes
    `merged`: IndexError for a node that it has not. RuntimeError of torch for `sees` that is not (m, m), m the tokens
    of scratch.
    """
    first = cached + lacking  # entry of tree node 0
    count = lacking + len(tree.tokens) + (len(scratch.tokens) if scratch else 0)
    allow = torch.zeros(count, cached + count, dtype=torch.bool)
    allow[:lacking, :first] = causal_mask(lacking, first)
    allow[lacking:, :first] = True
    for node, parent in enumerate(tree.parents):
        row = allow[lacking + node]
        if parent >= 0:
            row |= allow[lacking + parent]
        row[first + node] = True
    if scratch:
        _let_scratch_see(allow, lacking + len(tree.tokens), first, tree, scratch)
    return allow


def _let_scratch_see(allow: Tensor, start: int, first: int, tree: Tree, scratch: Scratch) -> None:
    own = first + len(tree.tokens)  # entry of scratch token 0
    allow[start:, own:] = torch.as_tensor(scratch.sees, dtype=torch.bool)
    allow[start:, own:].fill_diagonal_(True)
    for i, nodes in enumerate(scratch.sees_tree):
        seen = [tree.merged[node] for node in nodes]
        allow[start + i, [first + node for node in seen if node is not None]] = True
