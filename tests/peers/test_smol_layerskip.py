"""LayerSkip on the default model, fine-tuned for it and as it was: for every exit the text of plain decoding."""

import pytest

from lessons_lib import EarlyExit, generate, load
from lessons_lib.decoding.generate import tokens_per_pass
from lessons_lib.models.exits import LAYERSKIP
from lessons_lib.training.text_to_sql import text_to_sql

NEW = dict(max_new_tokens=12, min_new_tokens=12)
PAIRS = [(exit_layer, gamma) for exit_layer in (3, 10, 20) for gamma in (1, 4, 8)]


@pytest.fixture(scope="module")
def target(smollm2):  # whose weights it is made from
    return load(LAYERSKIP, device="cpu", dtype="fp32").target()


@pytest.mark.parametrize("number", range(2))
def test_the_fine_tuned_model_keeps_its_text(target, number):
    prompt = text_to_sql(2, "test")[number].prompt
    plain = generate(target, prompt, **NEW).ids
    assert {pair for pair in PAIRS if generate(target, prompt, EarlyExit(*pair), **NEW).ids != plain} == set()
    assert tokens_per_pass(generate(target, prompt, EarlyExit(10, 4), **NEW).stats) > 3  # its exits are trained


def test_the_model_as_it_was_keeps_its_text_though_its_exits_are_rarely_right(smollm2):
    target, prompt = smollm2.target(), text_to_sql(1, "test")[0].prompt
    plain = generate(target, prompt, **NEW).ids
    for exit_layer, gamma in ((3, 4), (10, 1), (20, 8)):
        assert generate(target, prompt, EarlyExit(exit_layer, gamma), **NEW).ids == plain
