"""Keys per channel, values per token: half a step, outliers, a residual left alone, codes that never change."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from lessons_lib.caches.cache import ContiguousCache
from lessons_lib.models import tiny
from lessons_lib.models.decoder import Decoder, Segment
from lessons_lib.quantization.kv import QuantizedCache, quantize_keys, quantize_values, restore_keys, restore_values

HEADS, DIM = 2, 32


def random(tokens: int, seed: int = 0, dtype=torch.float32) -> Tensor:
    """(H_kv, S, d)."""
    return torch.randn(HEADS, tokens, DIM, generator=torch.Generator().manual_seed(seed)).to(dtype)


def filled(
    lengths: list[int], bits: int = 4, group: int = 8, residual: int = 16
) -> tuple[QuantizedCache, Tensor, Tensor]:
    """A cache of one layer after appends of these lengths, with all keys and values it was given."""
    cache, keys, values = QuantizedCache(1, bits, group, residual), random(sum(lengths)), random(sum(lengths), 1)
    for k, v in zip(keys.split(lengths, 1), values.split(lengths, 1), strict=True):
        cache.append(0, k, v)
    return cache, keys, values


@given(seed=st.integers(0, 50), bits=st.integers(2, 8), group=st.sampled_from([8, 16, 32]))
def test_every_key_and_value_comes_back_within_half_a_step(seed, bits, group):
    x = random(64, seed)
    keys, values = quantize_keys(x, bits, group), quantize_values(x, bits, group)
    assert keys.shape == (64 // group, HEADS, DIM, group) and values.shape == (2, HEADS, 32, DIM)
    steps = keys.grid.scales.view(64 // group, HEADS, DIM).permute(1, 0, 2).repeat_interleave(group, 1).float()
    assert ((restore_keys(keys) - x).abs() <= 0.501 * steps + 1e-5).all()
    steps = values.grid.scales.view(2, HEADS, 32, -1).transpose(0, 1).flatten(1, 2).repeat_interleave(group, 2).float()
    assert ((restore_values(values) - x).abs() <= 0.501 * steps + 1e-5).all()


def error(restored: Tensor, x: Tensor, quiet: Tensor) -> float:
    return (restored - x)[:, quiet].square().mean().item()


def test_a_loud_channel_spoils_tokens_and_a_loud_token_channels():
    keys, quiet = random(32), torch.arange(31)
    keys[:, :, 31] *= 100
    channels, tokens = restore_keys(quantize_keys(keys)), restore_values(quantize_values(keys))
    assert error(channels.mT, keys.mT, quiet) < error(tokens.mT, keys.mT, quiet) / 20
    values = random(32)
    values[:, 31] *= 100
    channels, tokens = restore_keys(quantize_keys(values)), restore_values(quantize_values(values))
    assert error(tokens, values, quiet) < error(channels, values, quiet) / 20


@given(lengths=st.lists(st.integers(1, 40), min_size=1, max_size=6), group=st.sampled_from([8, 16]),
       residual=st.sampled_from([0, 8, 21]))  # fmt: skip
def test_the_newest_tokens_are_kept_bit_by_bit_however_they_come(lengths, group, residual):
    cache, keys, values = filled(lengths, group=group, residual=residual)
    total, first = sum(lengths), cache.rounded_length()
    assert cache.length() == total and first % group == 0
    assert first == max(0, total - residual) // group * group
    assert torch.equal(cache.newest[0][0], keys[:, first:]) and torch.equal(cache.newest[0][1], values[:, first:])
    if first:
        assert torch.equal(restore_keys(cache.rounded[0][0]), restore_keys(quantize_keys(keys[:, :first], 4, group)))
        once = quantize_values(values[:, :first], 4, group, group)
        assert torch.equal(restore_values(cache.rounded[0][1]), restore_values(once))


def test_a_pass_sees_its_own_tokens_as_they_are_and_older_ones_rounded():
    cache, keys, values = filled([40])
    seen_keys, seen_values = cache.append(0, keys[:, :3], values[:, :3])
    assert seen_keys.shape == (HEADS, 43, DIM) == seen_values.shape
    assert torch.equal(seen_keys[:, 24:], torch.cat([keys[:, 24:], keys[:, :3]], 1))
    assert torch.equal(seen_keys[:, :24], restore_keys(quantize_keys(keys[:, :24], 4, 8)))
    assert torch.equal(seen_values[:, :24], restore_values(quantize_values(values[:, :24], 4, 8, 8)))
    for cache in (QuantizedCache(1), QuantizedCache(1, 4, 8, 16)):  # also what is longer than the residual
        first = cache.append(0, keys, values)
        assert torch.equal(first[0], keys) and torch.equal(first[1], values)


def test_what_was_rounded_is_not_kept_as_it_was_as_well():
    cache, *_ = filled([1000], group=8, residual=16)
    assert [x.untyped_storage().nbytes() for x in cache.newest[0]] == [x.nbytes for x in cache.newest[0]]


def test_layers_may_be_of_unequal_length():
    cache = QuantizedCache(3, 4, 8, 16)
    for layer, tokens in enumerate((40, 21)):  # the third has none yet
        cache.append(layer, random(tokens, layer), random(tokens, layer + 5))
    assert [cache.length(layer) for layer in range(3)] == [40, 21, 0] and cache.rounded_length(0) == 24
    cache.keep(30)
    assert [cache.length(layer) for layer in range(3)] == [30, 21, 0]
    assert torch.equal(cache.newest[0][0], random(40)[:, 24:30]) and torch.equal(cache.newest[1][0], random(21, 1))
    cache.keep(24)  # all that was newest goes, and nothing that is rounded
    assert [cache.length(layer) for layer in range(3)] == [24, 21, 0]
    assert cache.append(0, random(1), random(1))[0].shape == (HEADS, 25, DIM)


def test_old_codes_never_change():
    cache, *_ = filled([40], bits=2)
    old = [(part.codes.clone(), part.grid.scales.clone()) for part in cache.rounded[0]]
    for seed in range(100):
        cache.append(0, random(10, seed), random(10, seed + 1))
    for (codes, scales), part in zip(old, cache.rounded[0], strict=True):
        assert torch.equal(part.codes[: len(codes)], codes) and torch.equal(part.grid.scales[: len(scales)], scales)
    assert cache.length() == 1040


def test_bytes_are_those_of_the_formula():
    cache = QuantizedCache(3, bits=2, group=32, residual=128)
    for layer in range(3):
        cache.append(layer, random(1000, dtype=torch.bfloat16), random(1000, dtype=torch.bfloat16))
    whole = 1000 - (1000 - 128) % 32  # whole groups are rounded
    rounded, bits = cache.rounded_length(), 2 + 32 / 32
    assert cache.nbytes == 3 * 2 * HEADS * DIM * (rounded * bits / 8 + (1000 - rounded) * 2)
    assert cache.rounded_length() == whole - 128


def test_rejected_draft_tokens_leave_nothing_behind():
    cache, keys, values = filled([40])
    again, *_ = filled([40])
    cache.append(0, random(5, 7), random(5, 8))
    cache.keep(40)
    assert cache.length() == 40 and torch.equal(cache.newest[0][0], again.newest[0][0])
    cache.append(0, random(5, 7), random(5, 8))
    cache.keep(40, [42, 44])
    assert cache.length() == 42
    assert torch.equal(cache.newest[0][1][:, -2:], random(5, 8)[:, [2, 4]])
    cache.keep(100)
    assert cache.length() == 42


def test_accepted_draft_tokens_may_be_rounded_already():
    cache, *_ = filled([8], residual=0)
    cache.keep(0, range(8))
    assert cache.length() == cache.rounded_length() == 8
    cache, keys, _ = filled([5, 8], residual=0)
    cache.keep(5, range(5, 10))
    assert cache.length() == 10 and cache.rounded_length() == 8
    assert torch.equal(cache.newest[0][0], keys[:, 8:10])


def test_rounded_tokens_cannot_be_taken_back():
    cache, *_ = filled([40])
    with pytest.raises(ValueError, match="24 tokens are rounded and cannot be cut to 23; use a larger residual"):
        cache.keep(23)


@torch.no_grad()
def test_a_decoder_reads_it_as_any_other_cache():
    """While all tokens are among the newest nothing is rounded; in 8 bits logits stay close, in 2 they do not."""
    decoder = Decoder.from_transformers(tiny())
    c = decoder.config
    ids = torch.tensor([5, 80, 3, 3, 61, 7, 7, 1, 90, 12, 5, 80, 3, 4, 61, 7, 9, 1, 90, 13])

    def logits(cache) -> Tensor:
        for at in range(len(ids)):
            states = decoder(ids[at : at + 1], [Segment(torch.tensor([at]), cache)]).last
        return decoder.logits(states)

    exact = logits(ContiguousCache(c.num_layers, c.num_kv_heads, c.head_dim, torch.float64))
    assert torch.equal(logits(QuantizedCache(c.num_layers, 2, 8, residual=20)), exact)
    off = {bits: (logits(QuantizedCache(c.num_layers, bits, 8, residual=0)) - exact).abs().max() for bits in (8, 2)}
    assert 0 < off[8] < off[2] / 10


@pytest.mark.parametrize("make, sentence", [
    (lambda: QuantizedCache(1, group=12), "a group is a multiple of 8 and a residual at least 0, not 12 and 128"),
    (lambda: QuantizedCache(1, residual=-1), "not 32 and -1"),
    (lambda: quantize_keys(random(33)), r"\(2, 33, 32\) is not \(H_kv, S, d\) with S a multiple of 32"),
    (lambda: QuantizedCache(1, residual=0).append(0, random(32) * float("nan"), random(32)), "holds 2048 NaN"),
])  # fmt: skip
def test_what_cannot_be_rounded_is_refused(make, sentence):
    with pytest.raises(ValueError, match=sentence):
        make()
