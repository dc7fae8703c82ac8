"""Keys and values in few bits against Quanto and HQQ, as transformers' cache calls them.

Both were made for matrices, and see (b, H_kv, S, d) as one. Quanto's axis -1 gives G tokens of one channel a scale
(keys per channel, if G divides S), axis 0 G channels of one token (values per token, if G divides d); transformers'
default is 0 for both. HQQ's axis 1 is Quanto's 0, but along axis 0 the entries of a group lie a G-th of the tensor
apart: tokens of one channel only for one head and G tokens. Their scales have 32 bits, ours 16, so a code here and
there differs.
"""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from transformers.cache_utils import QuantizedCache as Theirs

from lessons_lib.models import tiny
from lessons_lib.quantization.formats import relative_error
from lessons_lib.quantization.kv import QuantizedCache, quantize_keys, quantize_values, restore_keys, restore_values

G, D, PROMPT = 32, 64, 64
KIVI = {"quanto": (-1, 0), "hqq": (0, 1)}  # axis of keys per channel, and of values per token


def random(tokens: int, heads: int = 3) -> tuple[Tensor, Tensor]:
    """Keys, with a loud channel, and values (1, heads, tokens, d)."""
    generator = torch.Generator().manual_seed(0)
    keys, values = (torch.randn(1, heads, tokens, D, generator=generator) for _ in range(2))
    keys[..., 5] *= 20
    return keys, values


def theirs(backend: str, bits: int, axes: tuple[int, int], window: int = G) -> Theirs:
    options = dict(nbits=bits, axis_key=axes[0], axis_value=axes[1], q_group_size=G, residual_length=window)
    return Theirs(backend, tiny().config, **options)


def there_and_back(cache: Theirs, keys: Tensor, values: Tensor) -> list[Tensor]:
    """What their cache gives back of a prompt when the next token comes, each (H_kv, S, d)."""
    cache.update(keys, values, 0)
    seen = cache.update(keys[:, :, :1], values[:, :, :1], 0)
    return [x[0, :, :-1] for x in seen]


def ours(bits: int, keys: Tensor, values: Tensor) -> list[Tensor]:
    return [restore_keys(quantize_keys(keys[0], bits)), restore_values(quantize_values(values[0], bits))]


def apart(x: Tensor, y: Tensor) -> float:
    """Share of entries with another code: further apart than 16 bits of a scale explain."""
    return float((~torch.isclose(x, y, rtol=0.01, atol=0.01)).sum() / max(1, x.numel()))


@pytest.mark.parametrize("bits", [2, 4])
def test_in_kivis_layout_our_levels_are_quantos_bit_for_bit(quanto, bits):
    """What our codes stand for lies on their levels, too, if groups, minima and steps are the same."""
    keys, values = (x[None] for x in ours(bits, *random(PROMPT)))
    found = there_and_back(theirs("quanto", bits, KIVI["quanto"]), keys, values)
    assert torch.equal(found[0], keys[0]) and torch.equal(found[1], values[0])
    for axes in ((0, -1), (0, 0)):  # the other way round, and transformers' default
        found = there_and_back(theirs("quanto", bits, axes), keys, values)
        assert relative_error(keys[0], found[0]) > 0.1
        assert torch.equal(found[1], values[0]) == (axes[1] == 0)


@pytest.mark.parametrize("bits", [2, 4])
def test_what_lies_between_the_levels_is_rounded_as_quanto_does(quanto, bits):
    keys, values = random(PROMPT)
    right, found = ours(bits, keys, values), there_and_back(theirs("quanto", bits, KIVI["quanto"]), keys, values)
    assert max(apart(x, y) for x, y in zip(right, found, strict=True)) < 0.01
    swapped = there_and_back(theirs("quanto", bits, KIVI["quanto"][::-1]), keys, values)
    assert min(apart(x, y) for x, y in zip(right, swapped, strict=True)) > 0.5


def fed(bits: int, residual: int, window: int, pairs: tuple[Tensor, Tensor]) -> Iterator[tuple]:
    """Feed both a prompt, then token after token: (tokens rounded by them, by us, what they give back, what we do)."""
    cache, mine = theirs("quanto", bits, KIVI["quanto"], window), QuantizedCache(1, bits, G, residual)
    steps = [PROMPT] + [1] * (pairs[0].shape[2] - PROMPT)
    for keys, values in zip(*(x.split(steps, 2) for x in pairs), strict=True):
        layer = cache.layers[0]
        wide = layer.keys.shape[-2] if layer.is_initialized and layer.keys.numel() else 0
        rounded = layer.get_seq_length() - wide, mine.rounded_length()
        yield *rounded, [x[0] for x in cache.update(keys, values, 0)], mine.append(0, keys[0], values[0])


@pytest.mark.parametrize("bits", [2, 4])
@pytest.mark.parametrize("residual, window", [(0, G), (G, 2 * G)])
def test_token_after_token_our_cache_gives_back_what_transformers_does(quanto, bits, residual, window):
    """Theirs rounds all it has when its window is full, ours a group as soon as `residual` newer tokens are there."""
    pairs = random(PROMPT + 3 * G + 8)
    ahead = set()
    for theirs_has, ours_has, found, right in fed(bits, residual, window, pairs):
        ahead.add(theirs_has - ours_has)
        for x, y, z in zip(found, right, pairs, strict=True):
            both, none = min(theirs_has, ours_has), max(theirs_has, ours_has)
            assert x.shape == y.shape and apart(x[:, :both], y[:, :both]) < 0.01
            as_it_came = z[0, :, none : y.shape[1]]
            assert torch.equal(x[:, none:], as_it_came) and torch.equal(y[:, none:], as_it_came)
    assert theirs_has >= PROMPT + 2 * G and ahead == {0, residual}


@pytest.mark.parametrize("bits", [2, 4])
def test_values_per_token_and_keys_of_one_head_per_channel_are_hqqs(hqq, bits):
    """Before it looks for better minima."""

    def plain(x: Tensor, axis: int) -> Tensor:
        settings = dict(nbits=bits, group_size=G, axis=axis, device="cpu", compute_dtype=torch.float32)
        return hqq.dequantize(*hqq.quantize(x, optimize=False, **settings))[0]

    one, several = random(G, heads=1), random(PROMPT)
    keys, values = ours(bits, *one)[0], ours(bits, *several)[1]
    assert apart(keys, plain(one[0], 0)) < 0.01 and apart(values, plain(several[1], 1)) < 0.01
    assert apart(keys, plain(one[0], 1)) > 0.5 and apart(values, plain(several[1], 0)) > 0.5


@pytest.mark.parametrize("bits", [2, 4])
def test_hqqs_search_in_transformers_cache_errs_a_little_less_than_ours(hqq, bits):
    pair = random(G, heads=1)
    found = there_and_back(theirs("hqq", bits, KIVI["hqq"]), *pair)
    for x, better, right in zip(pair, found, ours(bits, *pair), strict=True):
        assert 0.9 < relative_error(x[0], better) / relative_error(x[0], right) < 1
