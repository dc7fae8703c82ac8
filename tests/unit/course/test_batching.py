"""The ragged pass and the scheduler that lesson 05 builds, on a tiny random model in float64, against `generate`."""

import pytest
import torch

from lessons_lib import generate
from lessons_lib.models import Decoder, tiny

PROMPTS = {"A": [3, 1, 4, 1, 5], "B": [9], "C": list(range(1, 18)), "D": [2, 7, 1, 8, 2, 8], "E": [6, 6]}
COUNTS = {"A": 3, "B": 12, "C": 2, "D": 5, "E": 4}


@pytest.fixture(scope="module")
def lesson(built):
    return built("05")


@pytest.fixture(scope="module")
def decoder():
    return Decoder.from_transformers(tiny(layers=2, dtype=torch.float64))


@pytest.fixture(scope="module")
def alone():
    network = tiny(layers=2, dtype=torch.float64)
    found = {name: generate(network, ids, max_new_tokens=COUNTS[name]).ids for name, ids in PROMPTS.items()}
    assert len(set(found["B"])) > 3  # a text that repeats one token would hide mistakes
    return found


def requests(lesson):
    return [lesson["Request"](name, list(ids), COUNTS[name]) for name, ids in PROMPTS.items()]


@pytest.mark.parametrize(("admit", "slots", "passes"), [
    ("continuous", 1, 26), ("continuous", 2, 14), ("static", 2, 21), ("continuous", 5, 12), ("static", 3, 17),
])  # fmt: skip
def test_every_request_gets_the_tokens_that_it_gets_alone_in_the_passes_counted_by_hand(
    lesson, decoder, alone, admit, slots, passes
):
    asked = requests(lesson)
    log = lesson["serve"](decoder, asked, slots, admit=lesson[admit])
    assert {r.name: r.new for r in asked} == alone
    assert len(log) == passes


def test_prefill_and_decode_share_a_pass_and_no_two_requests_share_a_block(lesson, decoder):
    log = lesson["serve"](decoder, requests(lesson), 2)
    fed = [[count for count, _ in row.values()] for row in log]
    assert fed[0] == [5, 1] and fed[3] == [1, 17]
    for row in log:
        blocks = [block for _, table in row.values() for block in table]
        assert len(blocks) == len(set(blocks))


def test_blocks_of_finished_requests_are_used_again(lesson, decoder, alone):
    asked = requests(lesson)
    lesson["serve"](decoder, asked, 1, num_blocks=3)  # C needs three blocks of eight tokens
    assert {r.name: r.new for r in asked} == alone


def test_an_eos_token_ends_a_request(lesson, decoder, alone):
    asked = requests(lesson)[:1]
    lesson["serve"](decoder, asked, 1, eos=alone["A"][:1])
    assert asked[0].new == alone["A"][:1]
