"""llama.cpp on the packaged file, where the extra is installed: its text is as likely to us as ours, with its
prompt lookup, too, and an earlier prompt leaves no trace."""

import pytest

pytest.importorskip("llama_cpp", reason="the extra is not installed: pip install -e .[llamacpp]")

from lessons_lib.decoding.generate import generate  # noqa: E402
from lessons_lib.decoding.llamacpp import LlamaCpp, missing  # noqa: E402
from lessons_lib.decoding.probing import shortfall  # noqa: E402
from lessons_lib.models import ModelUnavailable  # noqa: E402

PROMPT = "Copy this line twice: the lamp burns all night, the lamp burns all night.\n\nthe lamp"
NEW = 24


@pytest.fixture(scope="module")
def plain() -> LlamaCpp:
    return LlamaCpp("smollm2-135m", context=128)


def test_its_text_is_as_likely_to_the_same_weights_in_float32(smollm2, plain):
    prompt = smollm2.tokenizer(PROMPT).input_ids
    ids, timeline = plain.write(prompt, NEW)
    assert "=" in plain.instructions and len(ids) == len(timeline.times) == NEW and timeline.start < timeline.times[0]
    assert shortfall(smollm2.target(), prompt, ids).max() < 1  # logits; it rounds inputs to 8 bits


def test_its_text_is_as_likely_to_our_product_of_the_same_kind_and_ours_to_the_same_weights(smollm2, plain):
    """Codes of 4 bits times inputs of 8, both in groups of 32, as it multiplies; its head has no minima."""
    prompt, rounded = smollm2.tokenizer(PROMPT).input_ids, smollm2.target(weights="int4-int8")
    assert shortfall(rounded, prompt, plain.write(prompt, NEW)[0]).max() < 1
    ours = generate(rounded, prompt, max_new_tokens=NEW, min_new_tokens=NEW).ids
    assert shortfall(smollm2.target(), prompt, ours).max() < 1


def test_its_prompt_lookup_writes_a_text_as_likely_and_forgets_the_last_one(smollm2, plain):
    """The two texts may part where two tokens are nearly even: several rows at once round otherwise than one."""
    prompt = smollm2.tokenizer(PROMPT).input_ids
    looking, (alone, _) = LlamaCpp("smollm2-135m", context=128, lookup=4), plain.write(prompt, NEW)
    found = looking.write(prompt, NEW)[0]
    looking.write(prompt[5:], 8)
    assert looking.write(prompt, NEW)[0] == found and plain.write(prompt, NEW)[0] == alone
    assert found[:8] == alone[:8] and shortfall(smollm2.target(), prompt, found).max() < 1


def test_a_prompt_is_read_whole_however_much_of_it_was_read_before(smollm2, plain, monkeypatch):
    prompt, read, evaluate = smollm2.tokenizer(PROMPT).input_ids, [], plain.model.eval
    monkeypatch.setattr(plain.model, "eval", lambda ids: read.append(len(ids)) or evaluate(ids))
    for _ in range(2):
        plain.write(prompt, 3)
    assert read == [len(prompt), 1, 1] * 2


def test_only_packaged_models_have_a_file():
    assert missing() == ""
    with pytest.raises(ModelUnavailable, match="not 'tiny'; use one of: smollm2-135m"):
        LlamaCpp("tiny")
