"""The streaming cache: the tokens it keeps and their positions, against a form written with lists; methods A and B."""

import pytest
import torch
from support.proposers import tree_of

from lessons_lib.attention.rotary import rotary_tables, rotate
from lessons_lib.caches import Streaming, StreamingCache
from lessons_lib.caches.cache import CacheFullError
from lessons_lib.decoding.draft_tree import ModelInput, make_input, plain_input, tree_mask
from lessons_lib.decoding.targets import DecoderTarget, StreamingTarget
from lessons_lib.models import tiny
from lessons_lib.models.decoder import Decoder

IDS = torch.randint(97, (90,), generator=torch.Generator().manual_seed(0)).tolist()
SMALL = {"sinks": 2, "window": 16}
SETTINGS = pytest.mark.parametrize("settings", [
    pytest.param({}, id="A"),
    pytest.param({"evict": 5}, id="A-five-at-a-time"),
    pytest.param({"keys": "rotated"}, id="B"),
    pytest.param({"keys": "rotated", "evict": 5}, id="B-five-at-a-time"),
    pytest.param({"positions": "text"}, id="C"),
    pytest.param({"sinks": 0}, id="no-sinks"),
])  # fmt: skip


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    return Decoder.from_transformers(tiny())


def read(target, ids=IDS, sizes=(1,)) -> torch.Tensor:
    """Logits (T, V) of ids, fed in parts of these sizes, over and over."""
    cache, parts, at = target.new_cache(1), [], 0
    while at < len(ids):
        part = ids[at : at + sizes[len(parts) % len(sizes)]]
        parts.append(target.run([plain_input(part, cache, wanted=len(part))])[0].logits)
        at += len(part)
    return torch.cat(parts)


def close(a, b, atol=1e-12) -> bool:
    return torch.allclose(a, b, rtol=0, atol=atol)


def by_lists(decoder, ids, sinks, window, evict=1, query=lambda place, token: place) -> torch.Tensor:
    """StreamingLLM as the paper says it, token by token: keys before RoPE in lists, rotated at their index each time.

    query: position of the query, from its place in the cache and its number in the text.
    """
    c, groups = decoder.config, decoder.config.num_heads // decoder.config.num_kv_heads
    kept, logits = [([], []) for _ in decoder.layers], []
    for number, token in enumerate(ids):
        x = decoder.embedding.weight[token][None]
        for layer, (keys, values) in zip(decoder.layers, kept, strict=True):
            qkv = layer.qkv(layer._norm(x, layer.attention_norm)).view(-1, c.head_dim)
            q, k, v = qkv.split([c.num_heads, c.num_kv_heads, c.num_kv_heads])
            keys.append(k)
            values.append(v)
            at = query(len(keys) - 1, number)
            q = rotate(q, decoder.cos[at], decoder.sin[at])
            rotated = [rotate(key, decoder.cos[i], decoder.sin[i]) for i, key in enumerate(keys)]
            k, v = (torch.stack(entries).repeat_interleave(groups, 1) for entries in (rotated, values))
            weights = (torch.einsum("hd,shd->hs", q, k) * c.head_dim**-0.5).softmax(-1)
            x = x + layer.out(torch.einsum("hs,shd->hd", weights, v).reshape(1, -1))
            gate, up = layer.gate_up(layer._norm(x, layer.mlp_norm)).chunk(2, -1)
            x = x + layer.down(torch.nn.functional.silu(gate) * up)
        logits.append(decoder.logits(x))
        for keys, values in kept:
            if len(keys) > sinks + window:
                del keys[sinks : sinks + evict], values[sinks : sinks + evict]
    return torch.cat(logits)


def small_cache(**settings) -> StreamingCache:
    """Sinks 2, window 3, one layer; keys are not read."""
    tables = torch.ones(30, 4), torch.zeros(30, 4)
    return StreamingCache(1, 1, 4, torch.float32, "cpu", Streaming(sinks=2, window=3, **settings), tables)


def fed(cache, count):
    """Feed tokens one by one -> the last pass."""
    for _ in range(count):
        last = cache.begin([0])
        last.append(0, torch.full((1, 1, 4), float(cache.length())), torch.full((1, 1, 4), float(cache.length())))
        cache.advance(1)
    return last


@pytest.mark.parametrize("count, held", [
    (5, [0, 1, 2, 3, 4]),
    (6, [0, 1, 3, 4, 5]),
    (7, [0, 1, 4, 5, 6]),
    (8, [0, 1, 5, 6, 7]),
])  # fmt: skip
def test_it_keeps_the_first_two_and_the_last_three_tokens(count, held):
    cache = small_cache()
    fed(cache, count)
    assert cache.held() == held


def test_positions_are_places_in_the_cache():
    """Token 7 sees [0, 1, 4, 5, 6] at places 0 to 4, and is itself at 5. Every value carries its token's number."""
    cache = small_cache()
    last = fed(cache, 8)
    _, values = last.append(0, torch.full((1, 1, 4), 7.0), torch.full((1, 1, 4), 7.0))
    seen = last.mask[0]
    tokens = values[0, :, 0][seen].tolist()
    assert dict(zip(tokens, last.places[seen].tolist(), strict=True)) == {0: 0, 1: 1, 4: 2, 5: 3, 6: 4, 7: 5}
    assert last.positions.tolist() == [5]


def test_the_papers_example_of_positions():
    """With tokens 0-3 and 6-8 held, token 9 is decoded at positions 0 to 7."""
    tables = torch.ones(30, 4), torch.zeros(30, 4)
    cache = StreamingCache(1, 1, 4, torch.float32, "cpu", Streaming(sinks=4, window=3), tables)
    fed(cache, 9)
    assert cache.held() == [0, 1, 2, 3, 6, 7, 8]
    last = cache.begin([0])
    assert last.positions.tolist() == [7] and sorted(last.places[last.mask[0]].tolist()) == list(range(8))


def test_each_of_two_tokens_in_one_pass_sees_what_it_would_see_alone():
    """Tokens 8 and 9 after [0, 1, 5, 6, 7]: each sees both sinks, at distances 5 and 4, and the three before it."""
    cache = small_cache(chunk=2)
    fed(cache, 8)
    last = cache.begin([0, 1])
    _, values = last.append(0, *torch.tensor([8.0, 9.0]).view(1, 2, 1).expand(2, 1, 2, 4).clone())
    for row, (token, window) in enumerate([(8, [5, 6, 7, 8]), (9, [6, 7, 8, 9])]):
        seen = last.mask[row]
        distance = last.positions[row] - last.places[seen]
        found = sorted(zip(values[0, :, 0][seen].tolist(), distance.tolist(), strict=True))
        assert found == [(0, 5), (1, 4), *((other, token - other) for other in window)]


@pytest.mark.parametrize("evict", [1, 5])
@pytest.mark.parametrize("sinks", [0, 1, 4])
def test_the_logits_are_those_of_streamingllm_written_with_lists(decoder, sinks, evict):
    target = StreamingTarget(decoder, streaming=Streaming(sinks, window=16, evict=evict))
    assert close(read(target), by_lists(decoder, IDS, sinks, 16, evict))


def test_a_query_rotated_by_its_number_in_the_text_gives_other_logits(decoder):
    """The list form with this mistake agrees until the first eviction, and then no more."""
    target = StreamingTarget(decoder, streaming=Streaming(**SMALL))
    wrong = by_lists(decoder, IDS, **SMALL, query=lambda place, token: token)
    logits = read(target)
    assert close(logits[:19], wrong[:19])
    assert not close(logits[19], wrong[19], 0.1)


@SETTINGS
def test_a_cache_that_is_never_full_gives_the_plain_models_logits_exactly(decoder, settings):
    target = StreamingTarget(decoder, streaming=Streaming(window=len(IDS), chunk=30, **{"sinks": 2} | settings))
    plain = DecoderTarget(decoder)
    for sizes in ([1], [30]):
        assert torch.equal(read(target, sizes=sizes), read(plain, sizes=sizes))


@SETTINGS
@pytest.mark.parametrize("sizes", [[5], [16], [1, 3, 16], [90]], ids=str)
def test_chunks_of_any_size_give_the_logits_of_single_tokens(decoder, settings, sizes):
    """Also a prompt that is longer than cache and chunk: the target feeds it in chunks."""
    target = StreamingTarget(decoder, streaming=Streaming(**SMALL | settings))
    assert close(read(target, sizes=sizes), read(target))


def test_without_sinks_a_window_is_plain_attention_with_a_banded_mask(decoder):
    """Rotary positions are relative, so it does not matter that the window's tokens have small ones."""
    logits = read(StreamingTarget(decoder, streaming=Streaming(0, window=16)))
    cache, mask = DecoderTarget(decoder).new_cache(len(IDS)), torch.ones(90, 90, dtype=torch.bool).tril().triu(-16)
    banded = plain_input(IDS, cache, wanted=90)
    banded.mask = mask
    assert close(logits, DecoderTarget(decoder).run([banded])[0].logits)


@pytest.mark.parametrize("dtype, atol", [(torch.float64, 1e-12), (torch.float32, 1e-5)], ids=str)
def test_methods_a_and_b_agree_over_500_evictions(dtype, atol):
    """Keys and logits. B turns every key back up to 500 times."""
    decoder = Decoder.from_transformers(tiny(dtype=dtype))
    ids = torch.randint(97, (18 + 500,), generator=torch.Generator().manual_seed(1)).tolist()
    turned = {}
    for keys in ("unrotated", "rotated"):
        target = StreamingTarget(decoder, streaming=Streaming(**SMALL, keys=keys))
        target.run([plain_input(ids, cache := target.new_cache(1))])
        part = cache.begin([0])
        new = torch.zeros(2, 1, 8, dtype=dtype)
        turned[keys] = part.append(0, new, new)[0][:, part.mask[0]]
    assert close(turned["unrotated"], turned["rotated"], atol)


def test_turning_keys_by_blocks_gives_the_keys_turned_at_once():
    """Method B in float32: 50 evictions of ten tokens each against one of 500."""
    tables = tuple(table.float() for table in rotary_tables(Decoder.from_transformers(tiny(context=1024)).config))
    keys = torch.randn(2, 20, 8, generator=torch.Generator().manual_seed(0))

    def turned(shifts):
        settings = Streaming(sinks=4, window=12, chunk=4, keys="rotated")
        cache = StreamingCache(1, 2, 8, torch.float32, "cpu", settings, tables)
        cache.keys[0].copy_(keys)
        cache.advance(20)
        for shift in shifts:
            cache._turn(shift)
        return cache.keys[0]

    blockwise, at_once = turned(range(10, 501, 10)), turned([500])
    assert close(blockwise, at_once, 1e-5)
    assert torch.equal(at_once[:, :4], keys[:, :4]), "sinks do not move"
    assert not close(at_once[:, 4:], keys[:, 4:], 0.1)


def test_keys_in_16_bits_are_turned_so_seldom_that_rounding_stays_small():
    tables = rotary_tables(Decoder.from_transformers(tiny(context=2048, dtype=torch.float32)).config)
    keys = torch.randn(2, 4 + 1020 + 64, 8, generator=torch.Generator().manual_seed(0))

    def turned(dtype, evict, shifts):
        settings = Streaming(sinks=4, window=1020, keys="rotated", evict=evict)
        cache = StreamingCache(1, 2, 8, dtype, "cpu", settings, tuple(table.to(dtype) for table in tables))
        cache.keys[0].copy_(keys)
        cache.advance(cache.slots)
        for shift in shifts:
            cache._turn(shift)
        return cache.keys[0].float()

    exact = turned(torch.float32, 51, [1020])
    rounded = turned(torch.bfloat16, 51, range(51, 1021, 51))
    assert 0.01 * exact.norm() < (rounded - exact).norm() < 0.05 * exact.norm()
    with pytest.raises(ValueError, match="turned 1020 times, .* bfloat16; choose evict=51 or more"):
        turned(torch.bfloat16, 1, [])
    turned(torch.float32, 1, [])  # float32 may


@pytest.mark.parametrize("keys", ["unrotated", "rotated"])
def test_buffers_never_grow_and_all_layers_are_of_equal_length(decoder, keys):
    target = StreamingTarget(decoder, streaming=Streaming(**SMALL, chunk=8, keys=keys))
    cache = target.new_cache(10**6)
    before, buffers = cache.nbytes, [id(buffer) for buffer in cache.keys + cache.values]
    for _ in range(25):
        target.run([plain_input(IDS, cache)])
        assert cache.length(0) == cache.length(1)
    assert cache.length() == 25 * 90 and len(cache.held()) == 18
    assert cache.nbytes == before == 2 * 2 * (18 + 8) * 2 * 8 * 8  # layers, K and V, slots, heads, dimensions, bytes
    assert [id(buffer) for buffer in cache.keys + cache.values] == buffers


@SETTINGS
def test_dropped_tokens_leave_no_trace(decoder, settings):
    """Wrong tokens are fed, in a pass or one by one, and dropped; then the text goes on as if they had not been."""
    target = StreamingTarget(decoder, streaming=Streaming(**SMALL | settings))
    cache, logits = target.new_cache(1), []
    for at, token in enumerate(IDS):
        target.run([plain_input([1, 2, 3, 4, 5], cache)])
        cache.keep(at + 3)
        target.run([plain_input([6], cache)])
        cache.keep(at)
        logits.append(target.run([plain_input([token], cache)])[0].logits)
    assert close(torch.cat(logits), read(target))


@SETTINGS
def test_a_tree_fed_level_by_level_gives_the_logits_of_one_pass(decoder, settings):
    """As a draft model feeds it. Afterwards its accepted branch is kept, and the text goes on."""
    target = StreamingTarget(decoder, streaming=Streaming(**SMALL | settings))
    tree = tree_of([7, 8, 9, 10, 11], [-1, -1, 0, 1, 3])  # branches 7 9 and 8 10 11
    for ids in (IDS[:12], IDS[:40]):
        whole, levels = target.new_cache(1), target.new_cache(1)
        for cache in (whole, levels):
            target.run([plain_input(ids[:-1], cache)])
        expected = target.run([make_input(ids[-1:], tree, whole)])[0].logits
        found, mask = [target.run([plain_input(ids[-1:], levels)])[0].logits], tree_mask(1, tree, len(ids) - 1)
        for level in ([0, 1], [2, 3], [4]):
            rows = mask[1 + level[0] : 2 + level[-1], : len(ids) + 1 + level[-1]]
            offsets = [len(ids) - 1 + tree.depths[node] - levels.length() for node in level]
            model_input = ModelInput([tree.tokens[node] for node in level], offsets, rows, levels, len(level))
            found.append(target.run([model_input])[0].logits)
        assert close(torch.cat(found), expected)
        for cache in (whole, levels):
            cache.keep(len(ids), [len(ids) + node for node in (1, 3, 4)])
            (output,) = target.run([plain_input(IDS[:30], cache, wanted=30)])
            assert close(output.logits, read(target, [*ids, 8, 10, 11, *IDS[:30]])[-30:])


def test_evicted_tokens_do_not_come_back():
    cache = small_cache(chunk=2)
    fed(cache, 9)
    with pytest.raises(ValueError, match="can drop its last 2 tokens .its chunk., and 3 are to be dropped"):
        cache.keep(6)
    cache.keep(7)
    assert cache.held() == [0, 1, 4, 5, 6]
    cache.keep(0)  # a new text
    assert cache.held() == []


def test_a_pass_takes_a_chunk_at_most():
    with pytest.raises(CacheFullError, match="3 tokens do not fit a chunk of 2; feed them in chunks"):
        small_cache(chunk=2).begin([0, 1, 2])


@pytest.mark.parametrize("settings, error", [
    ({"sinks": -1}, "sinks=-1 is negative"),
    ({"window": 0}, "window=0 keeps no token"),
    ({"window": 8, "chunk": 9}, "a window of 8 tokens cannot take chunks of 9"),
    ({"window": 8, "chunk": 0}, "cannot take chunks of 0"),
    ({"window": 8, "evict": 9}, "evict=9 must be from 1 to the window"),
    ({"keys": "both"}, 'keys are "unrotated" or "rotated"'),
])  # fmt: skip
def test_settings_that_cannot_work_are_refused(settings, error):
    with pytest.raises(ValueError, match=error):
        Streaming(**settings)


def test_a_cache_with_more_places_than_the_model_has_positions_is_refused(decoder):
    with pytest.raises(ValueError, match="exceed the model's 256 positions; choose a smaller window"):
        StreamingTarget(decoder, streaming=Streaming(sinks=4, window=250))
