"""The readable decoder against transformers and against itself."""

import math

import pytest
import torch
import torch.nn.functional as F
from support.families import tiny_of
from support.oracle import exact
from transformers import LlamaConfig, LlamaForCausalLM

from lessons_lib.caches.cache import ContiguousCache, StaticBuffers, StaticCache, causal_mask
from lessons_lib.measure.config import ModelConfig
from lessons_lib.models import LanguageModel, tiny
from lessons_lib.models.decoder import Decoder, Segment, attend, decoder_config, rotary_tables, with_attention
from lessons_lib.quantization.cpu.pointwise import attend_by_products

TOKENS = torch.tensor([5, 80, 3, 3, 61, 17, 42, 9])


def segment(decoder, positions, cache=None, mask=None) -> Segment:
    c = decoder.config
    cache = cache or ContiguousCache(c.num_layers, c.num_kv_heads, c.head_dim, torch.float64)
    return Segment(torch.as_tensor(positions), cache, mask)


def logits_of(decoder, tokens, *segments, **options):
    with torch.no_grad():
        return decoder.logits(decoder(tokens, segments, **options).last)


@pytest.mark.parametrize("family, tied", [("llama", False), ("llama", True), ("mistral", False)])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_logits_equal_a_float64_oracle(family, tied, kv_heads):
    network = tiny_of(family, tied=tied, kv_heads=kv_heads)
    decoder = Decoder.from_transformers(network)
    with torch.no_grad(), exact():
        expected = network(TOKENS[None]).logits[0]
    found = logits_of(decoder, TOKENS, segment(decoder, range(8)))
    assert (found - expected).abs().max() < 1e-10


def test_cached_passes_equal_one_pass(tiny_model):
    decoder = Decoder.from_transformers(tiny_model)
    whole = logits_of(decoder, TOKENS, segment(decoder, range(8)))
    part = segment(decoder, range(3))
    pieces = [logits_of(decoder, TOKENS[:3], part)]
    for at in ([3], [4, 5, 6], [7]):  # one token, several at once, one
        pieces.append(logits_of(decoder, TOKENS[at], segment(decoder, at, part.cache)))
    assert (torch.cat(pieces) - whole).abs().max() < 1e-12


def test_packed_sequences_do_not_see_each_other(tiny_model):
    decoder = Decoder.from_transformers(tiny_model)
    alone = [logits_of(decoder, TOKENS[:5], segment(decoder, range(5)))]
    alone += [logits_of(decoder, TOKENS[5:], segment(decoder, range(3)))]
    together = logits_of(decoder, TOKENS, segment(decoder, range(5)), segment(decoder, range(3)))
    assert (together - torch.cat(alone)).abs().max() < 1e-12


def test_a_mask_and_positions_are_obeyed(tiny_model):
    """Two branches after the same three tokens, in one pass, equal each branch alone."""
    decoder = Decoder.from_transformers(tiny_model)
    mask = causal_mask(5, 5)
    mask[4, 3] = False  # the second branch does not see the first
    both = logits_of(decoder, TOKENS[:5], segment(decoder, [0, 1, 2, 3, 3], mask=mask))
    second = logits_of(decoder, TOKENS[[0, 1, 2, 4]], segment(decoder, range(4)))
    assert (both[4] - second[3]).abs().max() < 1e-12


def test_a_range_of_layers_continues_from_states(tiny_model):
    decoder = Decoder.from_transformers(tiny_model)
    rows = segment(decoder, range(8))
    with torch.no_grad():
        lower = decoder(TOKENS, [rows], layers=range(0, 1)).last
        upper = decoder(TOKENS, [rows], layers=range(1, 2), states=lower).last
        whole = decoder(TOKENS, [segment(decoder, range(8))], after=[1])
    assert rows.cache.length(0) == rows.cache.length(1) == 8
    torch.testing.assert_close(upper, whole.last, rtol=0, atol=1e-12)
    torch.testing.assert_close(lower, whole.after[1], rtol=0, atol=1e-12)


def test_static_buffers_give_the_same_logits(tiny_model):
    decoder = Decoder.from_transformers(tiny_model)
    c = decoder.config
    cache = StaticCache(c.num_layers, c.num_kv_heads, c.head_dim, torch.float64, capacity=12)
    logits_of(decoder, TOKENS[:5], segment(decoder, range(5), cache))
    buffers = StaticBuffers(cache.keys, cache.values, cache.new_entries(4))
    padded = torch.cat([TOKENS[5:], torch.tensor([0])])
    given = Segment(torch.tensor([5, 6, 7, 0]), buffers, cache.mask(None, 3, 4))
    found = logits_of(with_attention(decoder, attend_by_products), padded, given)[:3]
    whole = logits_of(decoder, TOKENS, segment(decoder, range(8)))
    assert (found - whole[5:]).abs().max() < 1e-12


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("masked", [True, False])
def test_both_ways_of_attending_agree(count, masked):
    generator = torch.Generator().manual_seed(0)
    draw = lambda *shape: torch.randn(*shape, dtype=torch.float64, generator=generator)  # noqa: E731
    q, keys, values = draw(4, count, 8), draw(2, 7, 8), draw(2, 7, 8)
    mask = causal_mask(count, 7)
    if masked:
        mask = mask & (torch.arange(7) % 3 > 0)
    expected = attend_by_products(q, keys, values, mask)
    found = attend(q, keys, values, mask if masked else None)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    assert torch.equal(attend_by_products(q, keys, values, mask if masked else None), expected)


def test_kernels_may_return_any_memory_layout(monkeypatch):
    """Some kernels on a GPU return (H, T, d) stored as (T, H, d)."""
    generator = torch.Generator().manual_seed(0)
    draw = lambda *shape: torch.randn(*shape, dtype=torch.float64, generator=generator)  # noqa: E731
    q, keys, values = draw(4, 3, 8), draw(2, 7, 8), draw(2, 7, 8)
    expected, kernel = attend(q, keys, values, None), F.scaled_dot_product_attention
    stored = lambda *args, **options: kernel(*args, **options).transpose(1, 2).contiguous().transpose(1, 2)  # noqa: E731
    monkeypatch.setattr(F, "scaled_dot_product_attention", stored)
    assert torch.equal(attend(q, keys, values, None), expected)


@pytest.mark.parametrize("change, said", [
    (dict(model_type="gpt_neox"), "model type 'gpt_neox'"),
    (dict(attention_bias=True), "biases"),
    (dict(hidden_act="gelu"), "activation 'gelu'"),
    (dict(rope_parameters={"rope_type": "yarn"}), "rope type 'yarn'"),
])  # fmt: skip
def test_what_it_does_not_compute_is_refused(tiny_model, change, said):
    config = tiny_model.config
    for name, value in change.items():
        object.__setattr__(config, name, value)
    with pytest.raises(ValueError, match=said):
        decoder_config(config)


def test_scaled_angles_of_three_channels_by_hand():
    """Frequencies 1, 1/4, 1/16 make 8, 2 and 1/2 turns in the first context: kept, a third kept, 8 times slower."""
    scaling = (8.0, 1.0, 4.0, 16 * math.pi)
    config = ModelConfig("", 1, 6, 1, 1, 6, 8, 9, 3, rope_theta=64.0, rope_scaling=scaling)
    cos, sin = rotary_tables(config)
    angles = torch.tensor([1, (1 / 3 + 2 / 3 / 8) / 4, 1 / 128], dtype=torch.float64)
    torch.testing.assert_close(cos[2, :3], (2 * angles).cos(), rtol=0, atol=1e-15)
    torch.testing.assert_close(sin[2], torch.cat([-(2 * angles).sin(), (2 * angles).sin()]), rtol=0, atol=1e-15)


@pytest.fixture
def scaled() -> LlamaForCausalLM:
    """tiny() with Llama 3.1's scaled angles: turns of its four channels in 64 tokens are 10, 3.2, 1.02 and 0.3."""
    plain = tiny()
    sizes = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
    rope = sizes | {"rope_type": "llama3", "rope_theta": 100.0}
    network = LlamaForCausalLM(LlamaConfig(**plain.config.to_dict() | {"rope_parameters": rope}))
    network.double().eval().load_state_dict(plain.state_dict())
    return network


def test_logits_with_scaled_angles_equal_transformers(scaled):
    decoder = Decoder.from_transformers(scaled)
    with torch.no_grad():
        expected = scaled(TOKENS[None]).logits[0]  # norms and angles in float32
    found = logits_of(decoder, TOKENS, segment(decoder, range(8)))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)


def test_a_decoder_is_frozen_and_its_network_is_not(tiny_model):
    decoder = Decoder.from_transformers(tiny_model)
    assert all(weight.requires_grad for weight in tiny_model.parameters())
    assert not any(weight.requires_grad for weight in decoder.parameters())
    tiny_model.float()  # the decoder keeps the memory that was shared
    assert {weight.dtype for weight in decoder.parameters()} == {torch.float64}


def test_a_sliding_window_bounds_the_context():
    assert Decoder.from_transformers(tiny_of("mistral", window=8)).config.max_position_embeddings == 8


@pytest.mark.parametrize("weights", [None, "W8A16"])
def test_a_head_of_its_own_is_read_whatever_the_config_says(weights):
    """As in a checkpoint whose head was fine-tuned and whose config still says tied."""
    network = tiny(tied=False, dtype=torch.float32)
    network.config.tie_word_embeddings = True
    model = LanguageModel(network, None, "tiny", "cpu", torch.float32)
    decoder = model.target(weights=weights).decoder
    with torch.no_grad():
        expected = network(TOKENS[None]).logits[0]
    cache = ContiguousCache(2, 2, 8, torch.float32)
    found = logits_of(decoder, TOKENS, segment(decoder, range(8), cache))
    assert (found - expected).norm() < 0.05 * expected.norm()
    assert not decoder.config.tie_word_embeddings and not model.shape.tie_word_embeddings


def test_a_head_that_is_the_embedding_is_one_table():
    network = tiny(tied=True)
    decoder = Decoder.from_transformers(network)
    assert decoder.config.tie_word_embeddings and decoder.head.weight is decoder.embedding.weight
    assert LanguageModel(network, None, "tiny", "cpu", torch.float64).shape.tie_word_embeddings
