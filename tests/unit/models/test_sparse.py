"""The decoder watched, cut and skipped: dense at threshold 0, equal to the mask applied by hand, worse at random."""

import pytest
import torch
import torch.nn.functional as F

from lessons_lib.caches.cache import ContiguousCache, causal_mask
from lessons_lib.models import tiny
from lessons_lib.models.decoder import Decoder, Segment, attend, with_attention
from lessons_lib.models.sparse import (
    attention_weights,
    calibrated,
    cut_gates,
    cut_inputs,
    drop,
    gate_of,
    keep_keys,
    skipping,
    tapped,
)
from lessons_lib.quantization import MATRICES

TOKENS = torch.tensor([5, 80, 3, 3, 61, 17, 42, 9, 11, 70, 2, 2, 33])


def logits(decoder, tokens=TOKENS, cache=None, start=0):
    c = decoder.config
    cache = cache or ContiguousCache(c.num_layers, c.num_kv_heads, c.head_dim, decoder.embedding.weight.dtype)
    positions = torch.arange(start, start + len(tokens))
    with torch.no_grad():
        return decoder.logits(decoder(tokens, [Segment(positions, cache)]).last)


def watched(decoder, tokens=TOKENS):
    """What every product of a dense pass reads, silu(gate) under "gate_up", and what attention was handed."""
    read, gates, attention = {}, {}, {}

    def into(place, x):
        read[place] = x
        return x

    def out(place, y):
        if place[1] == "gate_up":
            gates[place] = gate_of(y)
        return y

    dense = logits(tapped(decoder, into, out, lambda layer, *given: attention.update({layer: given})), tokens)
    return read, gates, attention, dense


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_recorded_weights_equal_transformers_eager_attention(kv_heads):
    network = tiny(kv_heads=kv_heads)
    decoder, eager = Decoder.from_transformers(network), network.eval()
    _, _, attention, _ = watched(decoder)
    eager.set_attn_implementation("eager")
    with torch.no_grad():
        expected = eager(TOKENS[None], output_attentions=True).attentions
    assert len(attention) == len(expected) == 2
    for layer, theirs in enumerate(expected):
        ours = attention_weights(*attention[layer])
        # transformers rounds the softmax of float64 scores to float32
        assert (ours - theirs[0]).abs().max() < 1e-5
        torch.testing.assert_close(ours.sum(-1), torch.ones(ours.shape[:-1], dtype=ours.dtype))
        assert not ours[:, ~causal_mask(13, 13)].any()


def test_weights_times_values_are_the_attention(tiny_model):
    q, keys, values = torch.randn(3, 4, 7, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    q, keys, values = q[:, 4:], keys[:2], values[:2]
    expected = attend(q, keys, values, None)
    out = attention_weights(q, keys) @ values.repeat_interleave(2, 0)
    assert (out - expected).abs().max() < 1e-12
    assert (keep_keys(q, keys, values, None, 1.0) - expected).abs().max() < 1e-12
    one = keep_keys(q, keys, values, None, 0.0)  # only the best key is left: its value comes back
    best = attention_weights(q, keys).argmax(-1)
    assert torch.allclose(one, torch.stack([values[h // 2][best[h]] for h in range(4)]))
    recent = keep_keys(q, keys, values, None, 0.0, lambda w: torch.arange(7.0).expand(w.shape))
    assert torch.allclose(recent, values[:, 4:].repeat_interleave(2, 0))


def test_a_mask_hides_keys_wherever_they_are():
    """As torch's own attention with the same mask, which is not the causal one."""
    q, keys, values = torch.randn(3, 4, 5, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    mask = torch.tensor([[1, 0, 0, 1, 0], [0, 1, 1, 0, 1], [1, 1, 1, 1, 1]]).bool()
    weights = attention_weights(q[:, :3], keys[:2], mask)
    expected = F.scaled_dot_product_attention(q[:, :3], keys[:2], values[:2], mask, enable_gqa=True)
    assert (weights @ values[:2].repeat_interleave(2, 0) - expected).abs().max() < 1e-12
    assert not weights[:, ~mask].any() and torch.allclose(weights.sum(-1), torch.ones(4, 3, dtype=torch.float64))
    assert (keep_keys(q[:, :3], keys[:2], values[:2], mask, 1.0) - expected).abs().max() < 1e-12
    newer_half = keep_keys(q[:, :3], keys[:2], values[:2], mask, 0.5, lambda w: torch.arange(5.0).expand(w.shape))
    recent = torch.tensor([[0, 0, 0, 1, 0], [0, 0, 1, 0, 1], [0, 0, 1, 1, 1]]).bool()  # of those allowed
    expected = F.scaled_dot_product_attention(q[:, :3], keys[:2], values[:2], recent, enable_gqa=True)
    assert (newer_half - expected).abs().max() < 1e-12


def test_weights_of_a_half_are_those_of_the_same_numbers_in_full():
    q, keys, values = torch.randn(3, 2, 6, 8, generator=torch.Generator().manual_seed(2)).bfloat16()
    weights = attention_weights(q, keys)
    assert weights.dtype == torch.float32 and torch.equal(weights, attention_weights(q.float(), keys.float()))
    kept, exact = keep_keys(q, keys, values, None, 0.5), keep_keys(*(x.float() for x in (q, keys, values)), None, 0.5)
    assert kept.dtype == torch.bfloat16 and torch.equal(kept, exact.bfloat16())


def test_taps_are_on_the_decoders_own_attention_and_show_the_mask(tiny_model):
    decoder, shown = Decoder.from_transformers(tiny_model), []
    decoder = with_attention(decoder, lambda *given: attend(*given) * 1.5)  # as no library attends
    seen = tapped(decoder, look=lambda layer, q, keys, mask: shown.append((layer, mask)))
    assert torch.equal(logits(seen), logits(decoder))
    c, mask = decoder.config, torch.eye(13, dtype=torch.bool)
    segment = Segment(torch.arange(13), ContiguousCache(c.num_layers, c.num_kv_heads, c.head_dim, torch.float64), mask)
    seen(TOKENS, [segment])
    assert [layer for layer, _ in shown] == [0, 1] * 2
    assert shown[0][1] is None and all(given is mask for _, given in shown[2:])


def test_taps_that_change_nothing_change_nothing(tiny_model):
    decoder = Decoder.from_transformers(tiny_model)
    read, gates, attention, dense = watched(decoder)
    assert torch.equal(dense, logits(decoder))
    assert set(read) == {(i, name) for i in range(2) for name in MATRICES} and set(attention) == {0, 1}
    w_gate_up = decoder.layers[1].gate_up.weight
    gate, up = F.linear(read[1, "gate_up"], w_gate_up).chunk(2, -1)
    torch.testing.assert_close(gates[1, "gate_up"], F.silu(gate))
    torch.testing.assert_close(read[1, "down"], F.silu(gate) * up)


def test_threshold_zero_is_dense_and_a_high_one_is_not(tiny_model):
    decoder = Decoder.from_transformers(tiny_model)
    read, gates, _, dense = watched(decoder)
    for change in ("into", "out"):
        cut, seen = (cut_inputs, read) if change == "into" else (cut_gates, gates)
        nothing = {change: cut(calibrated(seen, 0.0))}
        much = {change: cut(calibrated(seen, 0.7))}
        assert torch.equal(logits(tapped(decoder, **nothing)), dense)
        assert (logits(tapped(decoder, **much)) - dense).abs().max() > 1e-3
    assert torch.equal(logits(tapped(decoder, out=cut_gates({}))), dense)


def test_cut_inputs_are_cut_by_size_and_the_rest_stays():
    x = torch.tensor([[-3.0, 0.5, -0.5, 2.0]])
    cut = cut_inputs({(0, "down"): 0.5})
    assert cut((0, "down"), x).tolist() == [[-3.0, 0.0, 0.0, 2.0]]
    assert cut((1, "down"), x) is x
    assert cut_gates({(0, "down"): 9.0})((0, "down"), x) is x  # no gate, though it has a threshold


def test_gates_cut_equal_the_dense_mlp_with_the_mask_applied(tiny_model):
    decoder = Decoder.from_transformers(tiny_model)
    read, gates, _, _ = watched(decoder)
    thresholds, layer = calibrated(gates, 0.6), decoder.layers[0]
    dense_gate, dense_up = F.linear(read[0, "gate_up"], layer.gate_up.weight).chunk(2, -1)
    mask = F.silu(dense_gate).abs() > thresholds[0, "gate_up"]
    expected = F.linear(F.silu(dense_gate) * dense_up * mask, layer.down.weight)
    seen = {}

    def into(place, x):
        seen[place] = x
        return x

    logits(tapped(decoder, into, cut_gates(thresholds)))
    found = F.linear(seen[0, "down"], layer.down.weight)
    assert (found - expected).abs().max() < 1e-12
    assert (seen[0, "down"] == 0).double().mean().item() == pytest.approx(0.6, abs=0.01)


def test_skipping_gives_what_cutting_gives(tiny_model):
    decoder = Decoder.from_transformers(tiny_model)
    _, gates, _, dense = watched(decoder)
    for sparsity in (0.0, 0.5, 0.99):
        thresholds, c = calibrated(gates, sparsity), decoder.config
        cut, skip = tapped(decoder, out=cut_gates(thresholds)), skipping(decoder, thresholds)
        pair = [ContiguousCache(c.num_layers, c.num_kv_heads, c.head_dim, torch.float64) for _ in range(2)]
        for i, token in enumerate(TOKENS):
            one, other = (logits(of, token[None], cache, i) for of, cache in zip((cut, skip), pair, strict=True))
            assert (one - other).abs().max() < 1e-12
        if sparsity == 0:
            assert (other - dense[-1]).abs().max() < 1e-12


def test_skipping_is_refused_where_it_cannot_work(tiny_model):
    decoder = Decoder.from_transformers(tiny_model)
    with pytest.raises(ValueError, match="No threshold for the gate of layer 1"):
        skipping(decoder, {(0, "gate_up"): 0.1})
    with pytest.raises(ValueError, match="for one row, not 13"):
        logits(skipping(decoder, {(0, "gate_up"): 0.1, (1, "gate_up"): 0.1}))


def test_dropped_entries_are_chosen_at_the_rate_asked_for():
    x = torch.ones(200, 500)
    dropped = drop(0.3, torch.Generator().manual_seed(0))((0, "down"), x)
    assert (dropped == 0).double().mean().item() == pytest.approx(0.3, abs=0.01) and dropped.max() == 1
    assert torch.equal(dropped, drop(0.3, torch.Generator().manual_seed(0))((0, "down"), x))


def test_on_the_real_model_size_tells_what_can_go_and_chance_does_not(smollm2):
    """Thresholds of one text hit the share asked for on another within 2 points, and the loss grows with it."""
    decoder = Decoder.from_transformers(smollm2.network)
    one = "A kettle hums on the stove while rain runs down the window. " * 3
    other = "The committee met on Tuesday to discuss the new railway line, its cost, and who should pay for it. " * 3
    calibration, ids = (smollm2.tokenizer(text, return_tensors="pt").input_ids[0] for text in (one, other))
    read, gates, _, _ = watched(decoder, calibration)
    down = {place: x for place, x in read.items() if place[1] == "down"}

    def loss(into):
        return F.cross_entropy(logits(tapped(decoder, into), ids)[:-1], ids[1:]).item()

    losses = [loss(cut_inputs(calibrated(down, s))) for s in (0.0, 0.5, 0.9)]
    chance = loss(lambda place, x: drop(0.5, torch.Generator().manual_seed(0))(place, x) if place in down else x)
    assert losses[0] == F.cross_entropy(logits(decoder, ids)[:-1], ids[1:]).item()
    assert losses[0] - 0.02 < losses[1] < losses[2] and chance > losses[1] + 1
    thresholds = calibrated(gates, 0.5)
    _, held_out, _, _ = watched(decoder, ids)
    cut = [(held_out[p].abs() <= t).double().mean().item() for p, t in thresholds.items()]
    assert abs(sum(cut) / len(cut) - 0.5) < 0.02
