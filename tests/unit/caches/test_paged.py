"""Paged caches: the entries of a contiguous one, wherever the blocks lie and whatever others left in them."""

import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples

from lessons_lib.caches.cache import CacheFullError, ContiguousCache
from lessons_lib.caches.paged import PagedCache, PagedMemory, Pages
from lessons_lib.models.decoder import Decoder, Segment

LAYERS, HEADS, DIM, SIZE = 2, 2, 3, 4


def memory(blocks: int, block_size: int = SIZE) -> PagedMemory:
    """Full of NaN, as if whoever had it before had overflowed; the null block is zero."""
    made = PagedMemory(LAYERS, HEADS, DIM, torch.float64, blocks=blocks, block_size=block_size)
    for buffer in made.keys + made.values:
        buffer[:-1] = float("nan")
    return made


def fresh(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(2, HEADS, count, DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def feed(caches, count: int, seed: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The same new entries for every cache -> what attention would see of the last layer."""
    for layer in range(LAYERS):
        seen = [cache.append(layer, *fresh(count, seed + layer)) for cache in caches]
    return seen


operations = st.one_of(
    st.integers(1, 7),  # tokens to feed
    st.lists(st.booleans(), min_size=1, max_size=7),  # tokens to feed, and which of them to keep
)


@examples(60)
@given(st.integers(0, 99), st.lists(operations, max_size=8))
def test_any_sequence_of_appends_and_keeps_leaves_the_entries_of_a_contiguous_cache(seed, sequence):
    blocks = random.Random(seed).sample(range(20), 16)
    caches = ContiguousCache(LAYERS, HEADS, DIM, torch.float64), PagedCache(memory(20), blocks)
    for number, operation in enumerate(sequence):
        count = operation if isinstance(operation, int) else len(operation)
        start = caches[0].length()
        one, other = feed(caches, count, 10 * number)
        assert torch.equal(one[0], other[0]) and torch.equal(one[1], other[1])
        if not isinstance(operation, int):
            for cache in caches:
                cache.keep(start, [start + i for i, kept in enumerate(operation) if kept])
        assert caches[0].length() == caches[1].length() == caches[1].length(0)
        assert caches[0].positions([0, 2]) == caches[1].positions([0, 2])


def test_blocks_that_are_given_later_are_used_and_a_full_cache_refuses_more():
    cache = PagedCache(memory(3), blocks := [2])
    feed([cache], 4, 0)
    with pytest.raises(CacheFullError, match="1 blocks of 4 tokens cannot hold 5 entries; extend"):
        cache.append(0, *fresh(1, 0))
    with pytest.raises(CacheFullError):
        cache.room(1)
    blocks.append(0)
    assert cache.capacity == cache.most == 8 and cache.length() == 4
    feed([cache], 1, 5)
    assert cache.length() == 5
    cache.keep(4)
    blocks[1] = 1
    feed([cache], 1, 5)
    assert cache.memory.keys[0][1, :, 0].isfinite().all()  # in the new block, though it is the same entry


def test_a_block_that_its_owner_replaced_is_the_one_that_is_written():
    cache = PagedCache(memory(3), [0])
    feed([cache], 2, 0)
    cache.keep(0)
    cache.blocks[0] = 2
    feed([cache], 2, 0)
    assert torch.equal(cache.memory.keys[1][2, :, :2], cache.memory.keys[1][0, :, :2])


def test_sequences_that_feed_one_token_each_are_written_and_read_as_if_alone():
    shared, lengths = memory(12), [1, 4, 7, 0, 5]
    tables = [[5], [1, 9], [0, 11], [3], [2, 6]]
    together = [PagedCache(shared, table) for table in tables]
    alone = [ContiguousCache(LAYERS, HEADS, DIM, torch.float64) for _ in tables]
    for row, length in enumerate(lengths):
        if length:
            feed([together[row], alone[row]], length, 100 * row)
    starts, used, to_clear = zip(*(cache.room(1) for cache in together), strict=True)
    shared.clear([block for blocks in to_clear for block in blocks])
    pages = Pages(shared.keys, shared.values, torch.tensor(starts), torch.tensor(shared.padded(used)))
    for layer in range(LAYERS):
        keys, values = fresh(5, layer)
        all_keys, all_values = (of.transpose(1, 2).flatten(2, 3) for of in pages.append(layer, keys, values))
        for row, length in enumerate(lengths):
            one = alone[row].append(layer, keys[:, row : row + 1], values[:, row : row + 1])
            assert torch.equal(all_keys[row, :, : length + 1], one[0])
            assert torch.equal(all_values[row, :, : length + 1], one[1])
        assert all_values.isfinite().all()  # masked entries are multiplied by zero, which a NaN would survive
    visible = pages.visible()
    assert visible.shape == (5, 2, SIZE) and visible.sum((1, 2)).tolist() == [2, 5, 8, 1, 6]


@pytest.mark.parametrize("block_size", [1, 3, 16])
def test_the_decoder_gives_the_same_logits_on_scattered_blocks(tiny_model, block_size):
    decoder = Decoder.from_transformers(tiny_model)
    c = decoder.config
    blocks = random.Random(block_size).sample(range(40), -(-21 // block_size))
    paged = PagedMemory(c.num_layers, c.num_kv_heads, c.head_dim, torch.float64, blocks=40, block_size=block_size)
    for buffer in paged.keys + paged.values:
        buffer[:-1] = float("nan")
    caches = ContiguousCache(c.num_layers, c.num_kv_heads, c.head_dim, torch.float64), PagedCache(paged, blocks)
    tokens = torch.randint(97, (21,), generator=torch.Generator().manual_seed(0))
    for part in tokens.split([7, 1, 1, 8, 4]):
        positions = torch.arange(len(part)) + caches[0].length()
        one, other = (decoder.logits(decoder(part, [Segment(positions, cache)]).last) for cache in caches)
        torch.testing.assert_close(other, one, rtol=0, atol=1e-12)


def test_a_copied_block_has_the_same_entries_and_is_written_apart():
    shared = memory(4)
    one = PagedCache(shared, [0])
    feed([one], 2, 0)
    shared.copy(0, 3)
    other = PagedCache(shared, [3], length=2)
    seen = feed([one], 1, 5)[0], feed([other], 1, 9)[0]
    assert torch.equal(seen[0][0][:, :2], seen[1][0][:, :2])
    assert not torch.equal(seen[0][0][:, 2], seen[1][0][:, 2])


def test_a_layer_that_ran_ahead_is_cut_and_a_compiled_step_counts_from_the_last():
    cache = PagedCache(memory(5), [3, 1, 4])
    feed([cache], 4, seed=0)
    cache.append(0, *fresh(3, seed=9))
    cache.keep(5)
    assert (cache.length(0), cache.length()) == (5, 4)
    cache.advance(1)
    assert (cache.length(0), cache.length()) == (5, 5)


def test_bytes_are_those_of_all_blocks():
    made = PagedMemory(2, 2, 16, torch.float32, blocks=10, block_size=16)
    assert made.nbytes == 11 * 16 * 512  # 2 layers, 2 heads of 16, keys and values, 4 bytes: 512 a token


def test_room_is_in_the_blocks_up_to_the_last_new_entry_and_the_last_may_be_begun():
    cache = PagedCache(memory(5, block_size=4), [3, 1, 4])
    found = [cache.room(count) for count in (1, 4, 5, 12)]
    assert found == [(0, [3], [3]), (0, [3], []), (0, [3, 1], [1]), (0, [3, 1, 4], [])]
    feed([cache], 4, seed=0)
    assert cache.room(1) == (4, [3, 1], [1])
    with pytest.raises(CacheFullError, match="cannot hold 13"):
        cache.room(9)
