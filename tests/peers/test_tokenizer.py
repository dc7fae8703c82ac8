"""The model's tokenizer against llama.cpp's ids (data/make_tokenizer_fixture.py wrote them down)."""

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer, pre_tokenizers

FIXTURE = json.loads((Path(__file__).parents[1] / "data" / "tokenizer_fixture.json").read_text())
ROWS = FIXTURE["rows"]


def test_the_fixture_has_every_kind_of_text():
    kinds = {kind: sum(row["kind"] == kind for row in ROWS) for kind in {row["kind"] for row in ROWS}}
    assert set(kinds) == {"prose", "code", "numbers", "unicode", "white space", "chat", "odd"}
    assert len(ROWS) >= 150 and min(kinds.values()) >= 10


@pytest.mark.parametrize("kind", sorted({row["kind"] for row in ROWS}))
def test_ids_are_llama_cpps(smollm2, kind):
    wrong = [row["text"] for row in ROWS if row["kind"] == kind and encode(smollm2.tokenizer, row) != row["ids"]]
    assert wrong == []


def test_without_the_digit_splitter_the_fixture_would_tell(smollm2):
    backend = Tokenizer.from_str(smollm2.tokenizer.backend_tokenizer.to_str())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # what transformers builds
    wrong = [row for row in ROWS if backend.encode(row["text"], add_special_tokens=False).ids != row["ids"]]
    assert len(wrong) >= 10


def test_every_text_comes_back_from_its_ids(smollm2):
    wrong = [row["text"] for row in ROWS if smollm2.tokenizer.decode(row["ids"]) != row["text"]]
    assert wrong == []


def test_special_tokens_are_single_ids(smollm2):
    tokenizer = smollm2.tokenizer
    named = {"bos": tokenizer.bos_token_id, "eos": tokenizer.eos_token_id, "pad": tokenizer.pad_token_id}
    assert named == {"bos": 1, "eos": 2, "pad": 2}
    assert tokenizer("<|endoftext|><|im_start|><|im_end|>").input_ids == [0, 1, 2]
    assert tokenizer.decode([1, 0, 2], skip_special_tokens=True) == ""


def test_messages_become_the_chat_format_with_a_default_system_prompt(smollm2):
    text = smollm2.tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hi"}], tokenize=False, add_generation_prompt=True
    )
    assert text == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )


def encode(tokenizer, row):
    return tokenizer(row["text"], add_special_tokens=False).input_ids
