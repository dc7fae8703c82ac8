"""The decoder and the loop that lesson 01 builds, on a tiny random model, against transformers and the library."""

import pytest
import torch

from lessons_lib import Sampling, generate
from lessons_lib.measure.config import ModelConfig
from lessons_lib.models import Decoder, tiny

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]


@pytest.fixture(scope="module")
def lesson(built):
    return built("01")


@pytest.fixture(scope="module")
def network():
    return tiny(layers=2, dtype=torch.float64)


@pytest.fixture(scope="module")
def decoder(lesson, network):
    return lesson["from_transformers"](network, ModelConfig.from_transformers(network.config))


def test_the_logits_are_those_of_transformers_and_of_the_library(decoder, network):
    ids = torch.tensor(PROMPT)
    with torch.no_grad():
        ours, theirs = decoder.logits(decoder(ids)), network(ids[None]).logits[0]
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)  # transformers computes its angles in float32
    torch.testing.assert_close(ours, Decoder.from_transformers(network).read(PROMPT))


def test_the_weights_have_the_librarys_names_and_shapes(decoder, network):
    library = Decoder.from_transformers(network).state_dict()
    assert {name: weight.shape for name, weight in decoder.state_dict().items()} == {
        name: weight.shape for name, weight in library.items()
    }


def test_later_tokens_do_not_change_the_states_of_earlier_ones(decoder):
    whole, part = decoder(torch.tensor(PROMPT)), decoder(torch.tensor(PROMPT[:5]))
    torch.testing.assert_close(whole[:5], part)


def test_attention_over_a_longer_cache_sees_all_of_it_and_nothing_later(lesson):
    q, keys, values = torch.randn(4, 6, 8), torch.randn(2, 6, 8), torch.randn(2, 6, 8)
    whole = lesson["attend"](q, keys, values)
    torch.testing.assert_close(lesson["attend"](q[:, -2:], keys, values), whole[:, -2:])


def test_the_loop_generates_the_librarys_tokens_greedy_and_sampled(lesson, decoder, network):
    ids = torch.tensor(PROMPT)
    greedy = lesson["generate_simple"](decoder, ids, 12)
    assert greedy[len(PROMPT) :].tolist() == generate(network, PROMPT, max_new_tokens=12, min_new_tokens=12).ids
    seeded = [torch.Generator().manual_seed(1) for _ in range(2)]
    sampled = lesson["generate_simple"](decoder, ids, 12, 1.5, 20, generator=seeded[0])
    rule = Sampling(temperature=1.5, top_k=20)
    again = generate(network, PROMPT, None, rule, 12, min_new_tokens=12, generator=seeded[1])
    assert sampled[len(PROMPT) :].tolist() == again.ids
    assert sampled.tolist() != greedy.tolist()


def test_the_loop_ends_at_an_end_token_and_drops_the_beginning_of_a_long_text(lesson, decoder):
    ids = torch.tensor(PROMPT)
    first = lesson["generate_simple"](decoder, ids, 1)[-1].item()
    assert len(lesson["generate_simple"](decoder, ids, 12, eos=(first,))) == len(PROMPT) + 1
    context = decoder.config.max_position_embeddings
    long = torch.arange(context + 5) % decoder.config.vocab_size
    cropped = lesson["generate_simple"](decoder, long, 1)[-1]
    assert cropped == lesson["generate_simple"](decoder, long[-context:], 1)[-1]
