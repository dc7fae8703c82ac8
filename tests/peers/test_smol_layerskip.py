"""LayerSkip on the default model, fine-tuned for it and as it was: for three exits the text of plain decoding."""

import pytest
from support.examples import DEEP

from lessons_lib import EarlyExit, generate, load
from lessons_lib.decoding.generate import tokens_per_pass
from lessons_lib.models.exits import LAYERSKIP
from lessons_lib.training.text_to_sql import text_to_sql

pytestmark = pytest.mark.model
NEW = dict(max_new_tokens=12, min_new_tokens=12)
PAIRS = [(exit_layer, gamma) for exit_layer in (3, 10, 20) for gamma in (1, 4, 8)]
PROMPTS = [item.prompt for item in text_to_sql(50 if DEEP else 2, "test")]  # `make test-deep` tries 50


@pytest.fixture(scope="module")
def trained(smollm2):  # whose weights it is made from
    return load(LAYERSKIP, device="cpu", dtype="fp32").target()


@pytest.fixture(scope="module")
def untrained(smollm2):
    return smollm2.target()


@pytest.mark.parametrize("prompt", PROMPTS, ids=range(len(PROMPTS)))
@pytest.mark.parametrize("model", ["trained", "untrained"])
def test_the_text_is_that_of_plain_decoding(model, prompt, request):
    target = request.getfixturevalue(model)
    plain = generate(target, prompt, **NEW).ids
    outputs = {pair: generate(target, prompt, EarlyExit(*pair), **NEW) for pair in PAIRS}
    assert {pair for pair, out in outputs.items() if out.ids != plain} == set()
    assert all(any(step.draft_calls for step in out.stats) for out in outputs.values())


def test_training_makes_early_exits_right(trained):
    assert tokens_per_pass(generate(trained, PROMPTS[0], EarlyExit(10, 4), **NEW).stats) > 3
