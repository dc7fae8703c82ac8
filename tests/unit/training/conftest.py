"""A tiny target and texts it wrote."""

import pytest
import torch

from lessons_lib.models import LanguageModel, tiny
from lessons_lib.models.decoder import Decoder
from lessons_lib.training.collect import Text, Writer


class Words:
    """A tokenizer without merges: one token a letter, after a token that stands for the template."""

    eos_token_id, pad_token_id = 2, 0

    def apply_chat_template(self, messages, add_generation_prompt, return_dict):
        return [1, *(3 + ord(letter) % 90 for letter in messages[0]["content"])]


@pytest.fixture(scope="session")
def target() -> Decoder:
    return Decoder.from_transformers(tiny())


@pytest.fixture(scope="session")
def model() -> LanguageModel:
    return LanguageModel(tiny(), Words(), "tiny", "cpu", torch.float64)


@pytest.fixture(scope="session")
def texts(target) -> list[Text]:
    """Ten greedy texts of up to 12 new tokens."""
    prompts = [torch.arange(3 + n) * 7 % 97 for n in range(10)]
    jobs = [Text(f"chat/{n}", ids.tolist(), len(ids)) for n, ids in enumerate(prompts)]
    writer = Writer(target, eos=(), rows=4, capacity=40, max_new=12)
    return sorted(writer.write(jobs), key=lambda text: text.key)
