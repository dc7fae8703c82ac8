"""Scripted proposers: they know the text that plain greedy decoding writes, and draft it well, badly or oddly."""

import random
from collections.abc import Sequence
from typing import NamedTuple

from lessons_lib.decoding.draft_tree import ROOT, DraftTree, ModelOutput, SideTokens
from lessons_lib.decoding.proposers import Proposer
from lessons_lib.decoding.proposers.draft_length import Adaptive
from lessons_lib.decoding.proposers.early_exit import EarlyExit
from lessons_lib.decoding.proposers.lookahead import Lookahead


def tree_of(tokens: Sequence[int], parents: Sequence[int], mode: str = "unsampled", q=None, **budget) -> DraftTree:
    """A tree by lists, in which a parent is the number of a token in the list; q: parent -> its distribution."""
    tree, nodes = DraftTree(**budget), {ROOT: ROOT}
    for number, (token, parent) in enumerate(zip(tokens, parents, strict=True)):
        above = nodes[parent]
        nodes[number] = None if above is None else tree.add(above, token, mode, (q or {}).get(parent))
    return tree


def drafted(proposer: Proposer, ids: Sequence[int], **budget) -> DraftTree:
    """What it proposes after ids."""
    proposer.propose(ids, tree := DraftTree(**budget))
    return tree


class Seen(NamedTuple):
    tree: DraftTree
    path: list[int]
    tokens: list[int]
    scores: ModelOutput


class Scripted(Proposer):
    """Knows the whole text (prompt and continuation); `make(rest, self, tree)` drafts from what is to come."""

    def __init__(self, text: Sequence[int], vocab_size: int, make, seed: int = 0):
        self.text, self.vocab_size, self.make, self.rng = list(text), vocab_size, make, random.Random(seed)
        self.seen: list[Seen] = []

    def propose(self, ids, tree) -> None:
        assert ids == self.text[: len(ids)], "the committed text is not the scripted one"
        self.make(self.text[len(ids) :], self, tree)

    def observe(self, *seen) -> None:
        self.seen.append(Seen(*seen))

    def token(self) -> int:
        return self.rng.randrange(self.vocab_size)


def no_draft(rest, by, tree):
    pass


def always_right(rest, by, tree):
    tree.add_chain(rest[:4])


def always_wrong(rest, by, tree):
    tree.add_chain((token + 1) % by.vocab_size for token in rest[:4])


def right_until_third(rest, by, tree):
    tree.add_chain([*rest[:2], *((token + 1) % by.vocab_size for token in rest[2:4])])


def random_chain(rest, by, tree):
    tree.add_chain([by.token() for _ in range(by.rng.randrange(5))])


def tree_with_decoys(rest, by, tree):
    """The right chain among random branches; some decoys repeat the right token with another subtree."""
    right = ROOT
    for token in rest[:4]:
        siblings, below = [by.token(), token, by.token(), token], by.token()
        nodes = [tree.add(right, sibling) for sibling in siblings]
        if nodes[0] is not None:
            tree.add(nodes[0], below)
        if nodes[1] is None:
            return
        right = nodes[1]


def random_tree(rest, by, tree):
    for _ in range(by.rng.randrange(8)):
        tree.add(by.rng.randrange(-1, len(tree.tokens)), by.token())


def with_side_tokens(make):
    """The same tree, with three side tokens beside it."""

    def made(rest, by, tree):
        make(rest, by, tree)
        sees = [[False, False, False], [True, False, False], [False, True, False]]
        tree.add_side(SideTokens([by.token() for _ in range(3)], [1, 2, 3], sees))

    return made


SCRIPTS = [no_draft, always_right, always_wrong, right_until_third, random_chain, tree_with_decoys, random_tree]


class FreshExits(EarlyExit):
    """EarlyExit with several exits, whose schedules forget every earlier text. make: -> a schedule."""

    def __init__(self, layers, make, **options):
        super().__init__({layer: make() for layer in layers}, **options)
        self.make = make

    def reset(self, target, prompt):
        self.lengths = {layer: self.make() for layer in self.lengths}
        super().reset(target, prompt)


class Forgetful(Adaptive):
    """Earlier steps soon count for nothing, so that it changes its mind within a short text."""

    DECAY = 0.5


class TextLookahead(Lookahead):
    """Its pool also has the n-grams of the text, so that there are drafts from the first steps on."""

    def propose(self, ids, tree):
        for end in range(self.N, len(ids) + 1):
            self.pool.add(ids[end - self.N : end])
        super().propose(ids, tree)
