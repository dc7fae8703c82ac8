"""Replayed counts are those of real decoding."""

from dataclasses import replace

import pytest
import torch
from support.heads import random_heads

from lessons_lib import EarlyExit, Medusa
from lessons_lib.decoding.generate import generate, tokens_per_pass
from lessons_lib.decoding.prediction import replay_draft
from lessons_lib.decoding.proposers import Proposer
from lessons_lib.decoding.proposers.draft_length import Constant
from lessons_lib.decoding.proposers.tree_shape import regular
from lessons_lib.decoding.targets import DecoderTarget
from lessons_lib.models.draft import TrimmedDecoder, start_from
from lessons_lib.training import evaluate
from lessons_lib.training.collect import Text
from lessons_lib.training.evaluate import evaluate_heads, stats_of, top_tokens
from lessons_lib.training.loop import read_texts


class Greedily(Proposer):
    """Drafts by reading everything anew, so that nothing is shared with what it is compared with."""

    def __init__(self, draft, gamma):
        self.draft, self.gamma = draft, gamma

    def propose(self, ids, tree):
        drafted = []
        for _ in range(min(tree.max_depth, self.gamma)):
            states = read_texts(self.draft, [[*ids, *drafted]])
            drafted.append(self.draft.logits(states[-1:]).argmax().item())
        tree.add_chain(drafted)


@pytest.mark.parametrize("gamma", [1, 2, 4])
def test_replay_counts_the_passes_that_decoding_takes(target, gamma):
    draft = start_from(target, (0, 1), torch.arange(0, 97, 2))  # right about every other token
    counts = []
    for start in range(6):
        prompt = [start, 5, 9]
        out = generate(DecoderTarget(target, eos=(4, 8)), prompt, Greedily(draft, gamma), max_new_tokens=30)
        found = evaluate.right(draft, Text("chat/0", prompt + out.ids, 3))
        replayed = evaluate.tokens_per_pass([found], gamma)
        assert replayed == pytest.approx(tokens_per_pass(out.stats))
        counts.append(replayed)
    assert max(counts) > 1.2


def test_draft_tokens_one_by_one_are_those_of_one_reading(target):
    draft = start_from(target, (0, 1), torch.arange(0, 97, 2))
    found = []
    for start in range(4):
        prompt = [start, 5, 9]
        new = generate(DecoderTarget(target), prompt, max_new_tokens=20).ids
        found.append(evaluate.right_in_steps(DecoderTarget(draft), prompt, new))
        assert found[-1] == evaluate.right(draft, Text("chat/0", prompt + new, 3))
    assert {True, False} == {hit for text in found for hit in text}
    assert evaluate.right_in_steps(DecoderTarget(draft), [1, 2], [3]) == []


def test_kinds_of_the_bar_are_averaged_each_counting_the_same(target, monkeypatch):
    hits = {"chat/1": [True] * 4, "chat/2": [False], "math/3": [True, False], "rewrite/4": [False] * 3}
    hits["summarization/5"] = [True] * 3
    monkeypatch.setattr(evaluate, "right", lambda draft, text: hits[text.key])
    texts = [Text(key, [1] * 9, 2) for key in hits] + [
        Text("math/9", [1] * 9, 2, 0.8),
        Text("math/10", [1, 1, 2], 2),
    ]
    result = evaluate.evaluate(target, texts)
    assert result["kinds"]["chat"] == {"texts": 2, "tokens_per_pass": 2.5, "right": 0.8}  # 5 tokens in 2 passes
    assert result["kinds"]["math"]["tokens_per_pass"] == 2 and result["kinds"]["rewrite"]["tokens_per_pass"] == 1
    assert result["macro"] == (2.5 + 3 + 2) / 3


WIDE = regular(60, 4)  # of 97 tokens: about two of three first draft tokens are right


def replayed(heads, text, tree):
    return stats_of(heads, text, top_tokens(heads, text, tree.ranks), tree)


@pytest.mark.parametrize("root_rank", [0, 4])
@pytest.mark.parametrize("tree", [regular(1, 1), WIDE], ids=["chain", "wide"])
def test_replay_counts_the_steps_that_decoding_takes(target, texts, tree, root_rank):
    heads, accepted = random_heads(target.head.weight, 2, root_rank=root_rank), 0
    for text in texts:
        prompt, new = text.ids[: text.prompt_length], text.ids[text.prompt_length :]
        out = generate(DecoderTarget(target), prompt, Medusa(heads, tree), max_new_tokens=len(new))
        counts = [[(s.num_input_tokens, s.proposed, s.accepted, s.committed) for s in stats]
                  for stats in (out.stats, replayed(heads, text, tree))]  # fmt: skip
        assert out.ids == new and counts[0] == counts[1]
        accepted += sum(s.accepted for s in out.stats)
    assert accepted > 10 or tree is not WIDE


def test_kinds_count_the_same_and_sampled_texts_not_at_all(target, texts):
    heads = random_heads(target.head.weight, 2)
    named = [replace(text, key=f"{kind}/{n}") for n, (kind, text) in enumerate(zip(["chat", "math", "math", "rewrite"], texts, strict=False))]  # fmt: skip  # noqa: E501
    sampled = [replace(text, key=f"chat/sampled-{text.key}", temperature=0.8) for text in texts[4:]]
    found, narrow = (evaluate_heads(heads, [*named, *sampled], tree) for tree in (WIDE, regular(1)))
    tau = lambda some: tokens_per_pass([s for text in some for s in replayed(heads, text, WIDE)])  # noqa: E731
    assert tau(named[:1]) != pytest.approx(tau([*named[:1], *sampled]), abs=1e-3)
    assert found["kinds"] == pytest.approx({"chat": tau(named[:1]), "math": tau(named[1:3]), "rewrite": tau(named[3:])}, abs=1e-4)  # fmt: skip  # noqa: E501
    assert found["macro"] == pytest.approx((found["kinds"]["chat"] + found["kinds"]["math"]) / 2)
    assert (found["nodes"], narrow["nodes"]) == (60 + 240, 1) and narrow["macro"] < found["macro"]


@pytest.mark.parametrize("short", [None, torch.arange(0, 97, 2)], ids=["all tokens", "short vocabulary"])
def test_hits_of_the_exits_give_the_passes_that_early_exits_take(target, short):
    exits, passes = range(1, len(target.layers) + 1), {}
    trimmed = target if short is None else TrimmedDecoder.of(target, short)
    for start in range(4):
        prompt = [start, 5, 9]
        text = generate(DecoderTarget(target), prompt, max_new_tokens=20).ids
        hits = evaluate.right_at_exits(trimmed, Text("own", [*prompt, *text], 3), exits)
        for layer in exits:
            by = EarlyExit(layer, 3, short)
            out = generate(DecoderTarget(target), prompt, by, max_new_tokens=20)
            replayed = [step.committed for step in replay_draft(hits[layer], Constant(3))]
            passes[layer] = passes.get(layer, 0) + len(replayed)
            assert replayed == [step.committed for step in out.stats[1:]]
    assert passes[len(target.layers)] < passes[1]  # later exits are right more often
