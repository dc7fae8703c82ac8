"""Contiguous, static and paged caches: entries kept and lengths; of the first two, capacity and bytes, too."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lessons_lib.caches.cache import CacheFullError, ContiguousCache, StaticBuffers, StaticCache, causal_mask
from lessons_lib.caches.paged import PagedCache, PagedMemory


def numbered(count: int, start: int = 0) -> torch.Tensor:
    """(1, count, 1) entries that carry their own number."""
    return torch.arange(start, start + count, dtype=torch.float32).view(1, -1, 1)


def filled(kind, count: int, capacity: int):
    cache = kind(2, 1, 1, torch.float32, capacity=capacity)
    for layer in range(2):
        cache.append(layer, numbered(count), -numbered(count))
    return cache


def paged(*shape, capacity: int) -> PagedCache:
    """With its blocks, of 4 entries each, in reverse order."""
    blocks = capacity // 4
    return PagedCache(PagedMemory(*shape, blocks=blocks, block_size=4), [*range(blocks)][::-1])


KINDS = pytest.mark.parametrize("kind", [ContiguousCache, StaticCache, paged], ids=lambda kind: kind.__name__)


@KINDS
@pytest.mark.parametrize("prefix, then, kept", [
    (4, [], [0, 1, 2, 3]),
    (4, [4, 5], [0, 1, 2, 3, 4, 5]),
    (4, [5, 7], [0, 1, 2, 3, 5, 7]),
    (4, [6], [0, 1, 2, 3, 6]),
    (0, [2], [2]),
])  # fmt: skip
def test_kept_entries_are_those_named_in_order(kind, prefix, then, kept):
    cache = filled(kind, 8, 16)
    cache.keep(prefix, then)
    keys, values = cache.append(1, numbered(1, 99), -numbered(1, 99))
    assert cache.length(0) == len(kept) and cache.length(1) == len(kept) + 1
    assert keys.flatten().tolist() == [*kept, 99]
    assert values.flatten().tolist() == [-x for x in [*kept, 99]]


@KINDS
def test_layers_may_be_of_unequal_length_and_a_cut_makes_none_longer(kind):
    """A pass through the first layers alone leaves the others shorter."""
    cache = filled(kind, 3, 16)
    cache.append(0, numbered(2, 3), numbered(2, 3))
    assert (cache.length(0), cache.length(1), cache.length(), cache.positions([0])) == (5, 3, 3, [3])
    cache.keep(4)
    assert (cache.length(0), cache.length(1)) == (4, 3)


def test_a_contiguous_cache_grows_and_keeps_what_it_holds():
    cache = ContiguousCache(1, 1, 1, torch.float32, capacity=2)
    for start in range(0, 9, 3):
        keys, _ = cache.append(0, numbered(3, start), numbered(3, start))
    assert keys.flatten().tolist() == list(range(9))
    assert cache.capacity == 16  # doubled each time, so that growing copies every entry about once in all


def test_a_static_cache_refuses_what_does_not_fit_and_stays_as_it_was():
    cache = filled(StaticCache, 3, 4)
    with pytest.raises(CacheFullError, match="holds 4 tokens and 5 are needed"):
        cache.append(0, numbered(2), numbered(2))
    with pytest.raises(CacheFullError):
        cache.new_entries(2)
    assert cache.length() == 3


def test_bytes_allocated_follow_the_formula():
    cache = ContiguousCache(2, 2, 16, torch.float32, capacity=10)
    assert cache.nbytes == 10 * 512  # 2 layers, 2 heads of 16, keys and values, 4 bytes: 512 a token


def test_buffers_are_written_after_what_is_there_and_padding_is_forgotten():
    cache = filled(StaticCache, 3, 8)
    buffers = StaticBuffers(cache.keys, cache.values, cache.new_entries(3))
    for layer in range(2):
        keys, _ = buffers.append(layer, numbered(3, 50), numbered(3, 50))
    cache.advance(1)
    assert keys.shape == (1, 8, 1)
    assert cache.length() == 4
    assert cache.append(0, numbered(1, 7), numbered(1, 7))[0].flatten().tolist() == [0, 1, 2, 50, 7]


@given(st.integers(0, 6), st.integers(1, 4), st.integers(0, 3))
def test_static_masks_show_the_text_so_far_and_nothing_else(start, count, padding):
    cache = filled(StaticCache, start, 16)
    mask = cache.mask(None, count, count + padding)
    assert mask[:count, : start + count].equal(causal_mask(count, start + count))
    assert not mask[:count, start + count :].any()
    assert mask.any(-1).all()  # a row that sees nothing would be NaN
    given_mask = cache.mask(causal_mask(count, start + count), count, count + padding)
    assert given_mask[:count].equal(mask[:count])
    assert given_mask.any(-1).all() and given_mask.dtype == torch.bool
