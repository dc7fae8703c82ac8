"""Replayed counts are those of real decoding."""

import pytest
import torch

from lessons_lib.decoding.generate import generate
from lessons_lib.decoding.proposal import Proposal
from lessons_lib.decoding.proposers import Proposer
from lessons_lib.decoding.targets import DecoderTarget
from lessons_lib.decoding.trace import tokens_per_forward
from lessons_lib.models.draft import start_from
from lessons_lib.training import distill, evaluate
from lessons_lib.training.batched import Text

R, W = True, False


@pytest.mark.parametrize(
    "guesses, gamma, forwards",
    [
        ([R, R, W], 4, 1),
        ([R, R, R, R, R], 4, 1),
        ([R, R, R, R, R, R], 4, 2),
        ([W, W, W], 4, 3),
        ([W, R, W, R, R], 1, 3),
        ([R], 4, 1),
        ([], 4, 0),
    ],
)
def test_a_forward_commits_right_guesses_and_one_token_more(guesses, gamma, forwards):
    assert evaluate.forwards(guesses, gamma) == forwards


class Greedily(Proposer):
    """Guesses by reading everything anew, so that nothing is shared with what it is compared with."""

    def __init__(self, draft, gamma):
        self.draft, self.gamma = draft, gamma

    def propose(self, ids, limit):
        guesses = []
        for _ in range(min(limit, self.gamma)):
            states = distill.read(self.draft, [[*ids, *guesses]])
            guesses.append(self.draft.logits(states[-1:]).argmax().item())
        return Proposal.chain(guesses)


@pytest.mark.parametrize("gamma", [1, 2, 4])
def test_replay_counts_the_forwards_that_decoding_takes(target, gamma):
    draft = start_from(target, (0, 1), torch.arange(0, 97, 2))  # right about every other token
    counts = []
    for start in range(6):
        prompt = [start, 5, 9]
        out = generate(DecoderTarget(target, eos=(4, 8)), prompt, Greedily(draft, gamma), max_new_tokens=30)
        found = evaluate.right(draft, Text("chat/0", prompt + out.ids, 3))
        replayed = evaluate.tokens_per_forward([found], gamma)
        assert replayed == pytest.approx(tokens_per_forward(out.trace))
        counts.append(replayed)
    assert max(counts) > 1.2


def test_guesses_token_by_token_are_those_of_one_reading(target):
    draft = start_from(target, (0, 1), torch.arange(0, 97, 2))
    found = []
    for start in range(4):
        prompt = [start, 5, 9]
        new = generate(DecoderTarget(target), prompt, max_new_tokens=20).ids
        found.append(evaluate.right_in_steps(DecoderTarget(draft), prompt, new))
        assert found[-1] == evaluate.right(draft, Text("chat/0", prompt + new, 3))
    assert {True, False} == {guess for text in found for guess in text}
    assert evaluate.right_in_steps(DecoderTarget(draft), [1, 2], [3]) == []


def test_kinds_are_averaged_each_counting_the_same(target):
    draft = start_from(target, (0, 1), torch.arange(97))  # the target itself: always right
    texts = [
        Text("chat/1", [5, 6, 7], 2),
        Text("math/2", generate(DecoderTarget(target), [3, 4], max_new_tokens=12).ids, 2),
    ]
    own = [3, 4, *texts[1].ids]
    texts = [Text("chat/1", own, 2), Text("math/2", own, 2), Text("rewrite/3", own, 2), Text("math/9", own, 2, 0.8)]
    result = evaluate.evaluate(draft, texts, gamma=4)
    assert result["kinds"]["math"] == {"texts": 1, "tokens_per_forward": 11 / 3, "right": 1.0} | {
        "tokens_per_forward": round(11 / 3, 4)
    }
    assert result["macro"] == pytest.approx(11 / 3, abs=1e-4) and set(result["kinds"]) == {"chat", "math", "rewrite"}
    assert result["by_gamma"][1] == pytest.approx(11 / 6)


def test_means_are_over_kinds_that_the_bar_names():
    assert evaluate.mean([1.0, 2.0]) == 1.5 and evaluate.mean([]) != evaluate.mean([])
