"""The ladder on a GPU: all but the recording itself, which a stand-in replays by running the step anew."""

import gpu_ladder
import pytest
import torch
from support.targets import decoder_target

from lessons_lib import DraftModel, generate
from lessons_lib.models import tiny

PROMPTS = [[5, 6, 7, 8], [9, 5, 9, 5, 9]]


@pytest.fixture
def recordings(monkeypatch):
    """Compiled steps run as they are; "recorded" ones fill the tensors of their first call, as a graph does."""
    made = []

    def stand_in(step, args):
        out = step(*args)
        made.append(args)
        replay = lambda: [old.copy_(new) for old, new in zip(out, step(*args), strict=True)]  # noqa: E731
        return replay, out

    monkeypatch.setattr(gpu_ladder, "recorded", torch.no_grad()(stand_in))
    monkeypatch.setattr(
        "lessons_lib.decoding.targets.compiled.CompiledStep", lambda step, name, **how: torch.no_grad()(step)
    )
    return made


def test_recorded_steps_write_what_the_decoder_writes_text_after_text_and_are_recorded_once(recordings):
    eager, small = decoder_target(tiny()), decoder_target(tiny(seed=1))
    target = gpu_ladder.record(eager.decoder, eager, (1, 5))
    draft = gpu_ladder.record(small.decoder, small, (1, 2))
    for prompt in PROMPTS:
        plain = generate(eager, prompt, max_new_tokens=12).ids
        assert generate(target, prompt, max_new_tokens=12).ids == plain
        assert generate(target, prompt, max_new_tokens=12, proposer=DraftModel(draft, 4)).ids == plain
    assert sorted(len(args[0]) for args in recordings) == [1, 1, 5]  # target, draft, and the target's wide step


def test_results_of_a_step_outlive_the_next_one(recordings):
    step = gpu_ladder.Recorded(lambda tokens, keys, values: (tokens * 2, tokens + 1))
    first = step(torch.tensor([1]), None, None)
    second = step(torch.tensor([5]), None, None)
    assert [int(tensor) for tensor in (*first, *second)] == [2, 2, 10, 6]


def test_a_rung_that_fails_is_left_out_and_says_why(monkeypatch, capsys):
    def fails(ids):
        raise RuntimeError("no kernel")

    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(gpu_ladder, "prompts", lambda lm, categories, count: [[1, 2]])
    monkeypatch.setattr(gpu_ladder, "rungs", lambda lm: [("one", fails), ("two", lambda ids: [1] * 8)])
    (found,) = gpu_ladder.ladder(None)
    assert found[0] == "two" and set(found[1]) == set(gpu_ladder.ASKED) and min(found[1].values()) > 0
    assert "one: RuntimeError: no kernel" in capsys.readouterr().out
