"""What `generate` refuses in one sentence, what just fits, and the text it shows (lessons 01, 06)."""

import pytest
import torch
from support import proposers as scripts
from support.oracle import PROMPT, N
from support.proposers import Scripted, with_scratch
from support.targets import Tight, decoder_target, targets
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from lessons_lib.decoding.generate import generate, new_row
from lessons_lib.decoding.proposers import Proposer
from lessons_lib.decoding.streaming import TextStream
from lessons_lib.decoding.targets import DecoderTarget, Unsupported, as_target
from lessons_lib.models import tiny
from lessons_lib.models.decoder import Decoder


@pytest.fixture(scope="module")
def words() -> PreTrainedTokenizerFast:
    """One token a word, none for spaces: "w5" -> [5]."""
    tokenizer = Tokenizer(models.WordLevel({f"w{i}": i for i in range(97)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


@pytest.mark.parametrize("bad, said", [
    (dict(prompt=[]), "the prompt is empty"),
    (dict(prompt=[1, 97]), "token id 97 is not in this model's vocabulary of 97"),
    (dict(max_new_tokens=0), "max_new_tokens must be at least 1"),
    (dict(max_new_tokens=-3), "max_new_tokens must be at least 1"),
    (dict(min_new_tokens=9, max_new_tokens=4), "min_new_tokens between 0 and it"),
    (dict(prompt=[1] * 300), "do not fit the context of 256"),
    (dict(prompt=[1] * 200, max_new_tokens=58), "do not fit the context of 256"),
])  # fmt: skip
@targets
def test_bad_input_is_one_clear_sentence(network, target, bad, said):
    with pytest.raises(ValueError, match=said):
        generate(target(network), **dict(prompt=PROMPT) | bad)


@pytest.mark.parametrize("make", [scripts.tree_with_decoys, with_scratch(scripts.tree_with_decoys)])
@targets
def test_guesses_at_the_end_of_the_context_are_cut_to_what_fits(target, make):
    network = tiny(context=24)
    text = network.generate(torch.tensor([PROMPT]), max_new_tokens=20, do_sample=False)[0].tolist()
    out = generate(target(network), PROMPT, Scripted(text, 97, make), max_new_tokens=20)
    assert PROMPT + out.ids == text


def test_guesses_that_a_static_cache_cannot_hold_are_dropped(network, greedy_text):
    out = generate(
        Tight(network, len(PROMPT) + N + 1),
        PROMPT,
        Scripted(greedy_text, 97, scripts.tree_with_decoys),
        max_new_tokens=N,
    )
    assert PROMPT + out.ids == greedy_text


def test_a_text_may_fill_the_context_to_the_last_position(network):
    out = generate(decoder_target(network), [1] * 250, max_new_tokens=7)
    assert len(out.ids) == 7


def test_text_without_a_tokenizer_is_refused(network):
    with pytest.raises(TypeError, match="no tokenizer"):
        generate(network, "hello")
    with pytest.raises(TypeError, match="need a tokenizer"):
        generate(network, PROMPT, stop="x")


@pytest.mark.parametrize("prompt", ["", "   ", [], torch.tensor([], dtype=torch.long)], ids=repr)
@targets
def test_an_empty_prompt_is_refused_as_text_too(network, words, target, prompt):
    target = target(network)
    target.tokenizer = words
    assert len(generate(target, "w5", max_new_tokens=2).ids) == 2
    with pytest.raises(ValueError, match="the prompt is empty; give at least one token"):
        generate(target, prompt, max_new_tokens=2)


def test_a_proposer_whose_needs_are_not_offered_is_refused(network):
    class Demanding(Proposer):
        needs = frozenset({"rows"})

    with pytest.raises(Unsupported, match="Demanding needs rows, which TransformersTarget does not offer"):
        generate(network, PROMPT, Demanding())


def test_what_cannot_decode_is_refused():
    with pytest.raises(TypeError, match="str cannot decode"):
        as_target("smollm2-135m")


@pytest.mark.parametrize("stop", [None, "{word}"], ids=["", "stop text"])
def test_a_stream_has_shown_the_text_of_the_output_when_generate_returns(network, greedy_text, words, stop):
    target, written = DecoderTarget(Decoder.from_transformers(network), words), []
    stop = stop and f"w{greedy_text[len(PROMPT) + 6]}"
    stream = TextStream(words, written.append, stop)
    proposer = Scripted(greedy_text, 97, scripts.always_right)
    out = generate(target, PROMPT, proposer, max_new_tokens=N, stop=stop, on_tokens=stream)
    assert "".join(written) == out.text and len(written) > 1
    assert out.finish == ("stop" if stop else "length")


@pytest.mark.parametrize("least", [3, 4])
def test_a_stop_text_counts_from_the_minimum_length_on(network, greedy_text, words, least):
    target, new = DecoderTarget(Decoder.from_transformers(network), words), greedy_text[len(PROMPT) :]
    out = generate(target, PROMPT, max_new_tokens=N, min_new_tokens=least, stop=f"w{new[2]}")
    assert (out.ids, out.finish) == (new[:least], "stop")


@pytest.mark.parametrize("prompt", [torch.tensor(PROMPT), torch.tensor([PROMPT]), tuple(PROMPT)], ids=str)
def test_a_prompt_may_be_a_tensor_as_tokenizers_return_it(prompt):
    target = decoder_target(tiny())
    assert generate(target, prompt, max_new_tokens=4).ids == generate(target, PROMPT, max_new_tokens=4).ids


def test_a_prompt_of_one_token_may_be_a_tensor_too():
    assert new_row(decoder_target(tiny()), torch.tensor([5]), None, None, 4).ids == [5]


def test_a_text_may_end_at_once_unless_somebody_wants_it_longer():
    row = new_row(decoder_target(tiny()), PROMPT, None, None, 4)
    assert (row.ending.max_new_tokens, row.ending.min_new_tokens) == (4, 0)


def test_messages_go_through_the_tokenizers_chat_template(words):
    words.chat_template = (
        "{% for m in messages %}{{ m['content'] }} {% endfor %}{% if add_generation_prompt %}w9{% endif %}"  # noqa: E501
    )
    target = decoder_target(tiny())
    target.tokenizer = words
    row = new_row(target, [{"role": "user", "content": "w5 w6"}], None, None, 4)
    assert row.ids == [5, 6, 9]
