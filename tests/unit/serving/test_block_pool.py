"""The block pool: hand-worked cases, and after any sequence of operations every block is where it should be."""

from collections import Counter

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support.examples import examples

from lessons_lib.decoding.sequence import Sequence
from lessons_lib.serving.block_pool import BlockPool

names = iter(range(10**9))


def request(ids, output_length: int = 8) -> Sequence:
    return Sequence(next(names), ids=list(ids), output_length=output_length)


def run(pool: BlockPool, one: Sequence, new: list[int] | None = None) -> None:
    """Admit a request if need be, feed all that its cache lacks, and commit the token that comes of it."""
    if not one.block_table:
        one.num_computed_tokens = pool.match(one)
    assert pool.allocate(one, one.num_tokens)
    one.commit(one.num_uncomputed_tokens, new or [0])
    pool.store(one)


@pytest.mark.parametrize("other, reused", [
    ([*range(33), *range(100, 107)], 32),  # 33 tokens in common: two full blocks
    (range(40), 32),
    (range(32), 16),  # the last token is fed in any case, and a block is shared as a whole
    ([1, *range(1, 40)], 0),  # a block is known by all that stands before it, too
    ([*range(16), *range(15, 40)], 16),
])  # fmt: skip
def test_a_prefix_is_found_block_by_block(other, reused):
    pool, one, two = BlockPool(16, 16), request(range(40)), request(other)
    run(pool, one)
    assert pool.match(two) == reused
    assert two.block_table == one.block_table[: reused // 16]
    assert all(pool.shared[block] == 2 for block in two.block_table)


def test_nothing_is_found_without_sharing_or_without_ids():
    pool, one = BlockPool(16, 4, enable_prefix_caching=False), request(range(12))
    run(pool, one)
    assert pool.match(request(range(12))) == 0
    pool = BlockPool(16, 4)
    run(pool, request(range(12)))
    assert pool.match(Sequence("counted", prompt_length=12)) == 0


def test_a_prefix_outlives_its_request_until_its_room_is_needed_and_ends_are_forgotten_first():
    pool, one = BlockPool(4, 4), request(range(12))
    run(pool, one)
    pool.release(one)
    assert pool.free_blocks == 4
    two = request([50, 51, 52, 53, 54])
    run(pool, two)  # one block was empty, the other is taken from the end of the known text
    assert pool.match(three := request(range(12))) == 8
    assert len(three.block_table) == 2 and pool.free_blocks == 0


def test_the_prefix_unused_for_longest_is_forgotten_first():
    pool, old, new = BlockPool(2, 2), request([1, 2]), request([3, 4])
    for one in (old, new):
        run(pool, one)
    for one in (new, old):
        pool.release(one)
    pool.match(again := request([3, 4, 5]))
    pool.release(again)  # just used
    run(pool, request([7]))
    assert pool.match(request([1, 2, 3])) == 0 and pool.match(request([3, 4, 5])) == 2


def test_a_fork_shares_its_blocks_and_whoever_writes_first_copies_the_last_one():
    pool, parent, child = BlockPool(8, 4), request(range(6)), request(range(6))
    run(pool, parent)
    pool.fork(parent, child)
    child.commit(6, [0])
    shared = list(parent.block_table)
    assert child.block_table == shared and pool.free_blocks == 6
    assert pool.allocate(child, 7)
    assert pool.copies == [(shared[1], child.block_table[1])] and child.block_table[0] == shared[0]
    assert pool.allocate(parent, 7) and parent.block_table == shared  # it is the only owner now
    pool.release(parent)
    assert pool.shared == {} and pool.free_blocks == 6 and len(pool.copies) == 1


def test_a_fork_at_the_end_of_a_block_copies_nothing():
    pool, parent, child = BlockPool(8, 4), request(range(8)), request(range(8))
    run(pool, parent)
    assert pool.allocate(parent, 12)  # room ahead: it holds nothing yet
    pool.fork(parent, child)
    child.commit(8, [0])
    assert pool.allocate(child, 9) and pool.copies == []
    assert child.block_table[:2] == parent.block_table[:2]


def test_allocation_is_all_or_nothing_and_leaves_what_is_to_be_spared():
    pool, one, two = BlockPool(4, 4), request(range(5)), request(range(50, 60))
    assert pool.allocate(one, 5, spare=2) and pool.free_blocks == 2
    assert not pool.allocate(two, 9) and pool.free_blocks == 2 and two.block_table == []
    assert not pool.allocate(two, 8, spare=1) and pool.allocate(two, 4, spare=1)
    assert pool.allocate(one, 8, spare=4), "what it owns already needs no free block"


def test_lengths_alone_own_blocks_too_and_give_nothing_back_twice():
    pool, one = BlockPool(10**9, 4), Sequence(0, prompt_length=6)
    assert pool.match(one) == 0 and pool.allocate(one, 17) and pool.free_blocks == 10**9 - 5
    for tokens in (8, 8, 9, 6):
        pool.truncate(one, tokens)
        assert (pool.free_blocks, len(one.block_table)) == (10**9 - 2, 2)
    pool.release(one)
    pool.release(one)
    assert pool.free_blocks == 10**9 and one.block_table == []


def test_a_cleared_pool_knows_no_prefix_and_is_not_cleared_while_it_is_used():
    pool, one = BlockPool(8, 4), request(range(9))
    run(pool, one)
    with pytest.raises(ValueError, match="requests own 3 blocks"):
        pool.clear()
    pool.release(one)
    pool.copies.append((0, 1))  # by a run that broke off
    pool.clear()
    assert pool.free_blocks == 8 and pool.match(request(range(9))) == 0 and pool.copies == []


@pytest.mark.parametrize("sizes", [(0, 16), (4, 0), (-1, 4)])
def test_a_pool_without_blocks_is_refused(sizes):
    with pytest.raises(ValueError, match="A pool needs blocks of tokens"):
        BlockPool(*sizes)


class AnyOrder(RuleBasedStateMachine):
    """Requests come, run, fork, give back room and go in any order. `memory` is what a real cache would hold: for each
    block and offset the text up to there, which is what keys and values depend on."""

    @initialize(blocks=st.integers(1, 12), size=st.integers(1, 3), sharing=st.booleans())
    def begin(self, blocks, size, sharing):
        self.pool, self.requests = BlockPool(blocks, size, sharing), []
        self.memory = [[()] * size for _ in range(blocks)]

    def at(self, one: Sequence, i: int) -> tuple[list, int]:
        return self.memory[one.block_table[i // self.pool.block_size]], i % self.pool.block_size

    def picked(self, number: int) -> Sequence:
        return self.requests[number % len(self.requests)]

    @rule(ids=st.lists(st.integers(0, 1), min_size=1, max_size=8))
    def come(self, ids):
        one = request(ids, 50)
        one.num_computed_tokens = self.pool.match(one)
        assert one.num_computed_tokens < one.num_tokens and one.num_computed_tokens % self.pool.block_size == 0
        self.requests.append(one)

    @precondition(lambda self: self.requests)
    @rule(number=st.integers(0, 9), part=st.integers(1, 9), draft_tokens=st.integers(0, 4), spare=st.integers(0, 3))
    def feed(self, number, part, draft_tokens, spare):
        one, free = self.picked(number), self.pool.free_blocks
        fed = min(one.num_uncomputed_tokens, part)
        before, tokens = list(one.block_table), one.num_computed_tokens + fed + draft_tokens
        if not self.pool.allocate(one, tokens, spare):
            assert self.pool.free_blocks == free and one.block_table == before
            return
        assert self.pool.free_blocks >= min(free, spare)
        for source, to in self.pool.copies:
            self.memory[to] = list(self.memory[source])
        self.pool.copies.clear()
        text = [*one.ids, *[9] * draft_tokens]
        for i in range(one.num_computed_tokens, tokens):
            block, offset = self.at(one, i)
            block[offset] = tuple(text[: i + 1])
        one.commit(fed, [part % 2] if fed == one.num_uncomputed_tokens else [])
        self.pool.store(one)

    @precondition(lambda self: self.requests)
    @rule(number=st.integers(0, 9))
    def reject(self, number):
        one = self.picked(number)
        self.pool.truncate(one, one.num_computed_tokens)
        assert len(one.block_table) <= -(-one.num_computed_tokens // self.pool.block_size)

    @precondition(lambda self: self.requests)
    @rule(number=st.integers(0, 9), token=st.integers(0, 1))
    def fork(self, number, token):
        one = self.picked(number)
        child = request([*one.ids, token], 50)
        self.pool.fork(one, child)
        child.num_computed_tokens = one.num_computed_tokens
        self.requests.append(child)

    @precondition(lambda self: self.requests)
    @rule(number=st.integers(0, 9))
    def go(self, number):
        one = self.picked(number)
        self.requests.remove(one)
        self.pool.release(one)
        self.pool.release(one)  # a second time does nothing

    @invariant()
    def every_block_is_free_or_owned_and_references_are_counted(self):
        if hasattr(self, "pool"):
            owners = Counter(block for one in self.requests for block in one.block_table)
            assert {block: count for block, count in owners.items() if count > 1} == self.pool.shared
            assert self.pool.free_blocks + len(owners) == self.pool.num_blocks

    @invariant()
    def every_request_reads_its_own_text(self):
        for one in getattr(self, "requests", ()):
            for i in range(one.num_computed_tokens):
                block, offset = self.at(one, i)
                assert block[offset] == tuple(one.ids[: i + 1])


AnyOrder.TestCase.settings = examples(80, stateful_step_count=20)

TestAnyOrder = AnyOrder.TestCase
