"""Scripted proposers: they know the text that plain greedy decoding writes, and guess it well, badly or oddly."""

import random
from collections.abc import Sequence

from lessons_lib.decoding.draft_tree import Proposal, Scratch
from lessons_lib.decoding.proposers import Observation, Proposer


class Scripted(Proposer):
    """Knows the whole text (prompt and continuation); `make(rest, rng)` turns what is to come into a proposal."""

    def __init__(self, text: Sequence[int], vocab_size: int, make, seed: int = 0):
        self.text, self.vocab_size, self.make, self.rng = list(text), vocab_size, make, random.Random(seed)
        self.seen: list[Observation] = []

    def propose(self, ids, limit) -> Proposal:
        assert ids == self.text[: len(ids)], "the committed text is not the scripted one"
        return self.make(self.text[len(ids) :], self)

    def observe(self, seen) -> None:
        self.seen.append(seen)

    def token(self) -> int:
        return self.rng.randrange(self.vocab_size)


def silent(rest, by):
    return Proposal()


def always_right(rest, by):
    return Proposal.chain(rest[:4])


def always_wrong(rest, by):
    return Proposal.chain([(token + 1) % by.vocab_size for token in rest[:4]])


def right_until_third(rest, by):
    return Proposal.chain([*rest[:2], *((token + 1) % by.vocab_size for token in rest[2:4])])


def random_chain(rest, by):
    return Proposal.chain([by.token() for _ in range(by.rng.randrange(5))])


def tree_with_decoys(rest, by):
    """The right chain among random branches; some decoys repeat the right token with another subtree."""
    tokens, parents, right = [], [], -1
    for token in rest[:4]:
        siblings = [by.token(), token, by.token(), token]
        first = len(tokens)
        tokens += siblings
        parents += [right] * 4
        tokens += [by.token()]
        parents += [first]
        right = first + 1
    return Proposal(tokens, parents)


def random_tree(rest, by):
    size = by.rng.randrange(8)
    return Proposal([by.token() for _ in range(size)], [by.rng.randrange(-1, node) for node in range(size)])


def with_scratch(make):
    """The same proposal, with three scratch tokens beside it."""

    def made(rest, by):
        proposal = make(rest, by)
        sees = [[False, False, False], [True, False, False], [False, True, False]]
        scratch = Scratch([by.token() for _ in range(3)], [1, 2, 3], sees)
        return Proposal(proposal.tokens, proposal.parents, scratch=scratch)

    return made


SCRIPTS = [silent, always_right, always_wrong, right_until_third, random_chain, tree_with_decoys, random_tree]
