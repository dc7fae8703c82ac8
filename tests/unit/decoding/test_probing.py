"""A step that can be repeated, what a target says along a text, and how far a text is from its own choices."""

import pytest
import torch
from support.targets import targets

from lessons_lib.decoding.generate import generate
from lessons_lib.decoding.probing import (
    Divergence,
    agreed,
    first_divergence,
    logit_gap,
    logits_along,
    repeatable_step,
    width_times,
)
from lessons_lib.decoding.targets import TransformersTarget
from lessons_lib.decoding.targets.self_check import agree
from lessons_lib.decoding.targets.table import TableTarget
from lessons_lib.models import tiny

PROMPT = [5, 80, 3, 3, 61]


@targets
def test_a_repeated_step_finds_the_cache_as_the_first_one_did(target):
    target, seen = target(tiny()), []
    run = target.run

    def spy(inputs):
        (scores,) = run(inputs)
        seen.append((inputs[0].cache.length(), scores.logits))
        return [scores]

    target.run = spy
    step = repeatable_step(target, PROMPT, tokens=2)
    for _ in range(3):
        step()
    assert [length for length, _ in seen] == [5, 7, 7, 7]
    for _, logits in seen[2:]:
        torch.testing.assert_close(logits, seen[1][1])


@targets
def test_the_width_curve_times_every_width_in_turn(target):
    target, fed = target(tiny()), []
    run = target.run
    target.run = lambda inputs: fed.append(len(inputs[0].tokens)) or run(inputs)
    curve = width_times(target, PROMPT, (1, 4), "cpu", repeats=3)
    assert fed[:2] == [5, 5] and fed[-6:] == [1, 4] * 3
    assert {width: len(samples.times) for width, samples in curve.items()} == {1: 3, 4: 3}


@targets
def test_a_targets_own_greedy_text_falls_short_nowhere_and_another_token_does(target):
    target = target(tiny())
    new = generate(target, PROMPT, max_new_tokens=8).ids
    assert logit_gap(target, PROMPT, new).tolist() == [0] * 8
    new[-1] = (new[-1] + 1) % 97
    short = logit_gap(target, PROMPT, new)
    assert short[-1] > 0 and not short[:-1].any()


@targets
def test_a_token_that_was_held_back_is_nobodys_argmax(target):
    target = target(tiny())
    free = generate(target, PROMPT, max_new_tokens=8).ids
    target.eos = (free[3],)
    new = generate(target, PROMPT, max_new_tokens=8, min_new_tokens=8).ids
    assert new[:3] == free[:3] and free[3] not in new
    assert logit_gap(target, PROMPT, new, target.eos).tolist() == [0] * 8
    assert logit_gap(target, PROMPT, new)[3] > 0


@targets
def test_one_pass_along_a_text_says_what_steps_say_one_by_one(target):
    target, network = target(tiny()), tiny()
    with torch.no_grad():
        whole = network(torch.tensor([PROMPT])).logits[0]
    torch.testing.assert_close(logits_along(target, PROMPT, 3), whole[-3:], atol=1e-5, rtol=0)
    torch.testing.assert_close(logits_along(target, PROMPT[:3], 1)[0], whole[2], atol=1e-5, rtol=0)


@pytest.mark.parametrize("one, other, same", [
    ([], [1], 0), ([1, 2, 3], [1, 2, 3], 3), ([1, 2], [1, 2, 3], 2), ([1, 9, 3], [1, 2, 3], 1), ("aba", "bba", 0),
])  # fmt: skip
def test_texts_agree_up_to_the_first_difference(one, other, same):
    assert agreed(one, other) == agreed(other, one) == same


def test_an_audit_names_the_first_difference_and_the_rivals_margin():
    target = TransformersTarget(tiny())
    text = generate(target, PROMPT, max_new_tokens=6).ids
    rival = (text[4] + 1) % 97
    found = first_divergence(target, PROMPT, text, [*text[:4], rival, 0])
    logits = logits_along(target, PROMPT + text[:4], 1)[0]
    assert found.same == 4 and found.margin == pytest.approx((logits[text[4]] - logits[rival]).item())
    assert 0 < found.spacing < 1e-14 and not found.near_tie
    assert (
        first_divergence(target, PROMPT, text, text) is None
        and first_divergence(target, PROMPT, text, text[:3]) is None
    )


@pytest.mark.parametrize("margin, near", [(0.5, True), (0.51, False)])
def test_a_near_tie_is_within_two_roundings_of_each_logit(margin, near):
    found, said = Divergence(3, margin, 0.125), "a near tie" if near else "NOT a near tie"
    assert found.near_tie is near
    assert str(found) == f"they part at token 4, margin {margin:.3f}, spacing 0.125: {said}"


def test_a_token_that_cannot_follow_is_no_near_tie():
    found = first_divergence(TableTarget([[1, 0], [1, 0]]), [0], [0], [1])
    assert found.margin == float("inf") and not found.near_tie


def test_the_spacing_is_that_of_the_targets_format():
    class Flat(TransformersTarget):
        def run(self, inputs):
            scores = super().run(inputs)
            scores[0].logits = torch.tensor([[17.0, 16.0, -3.0]], dtype=torch.bfloat16)
            return scores

    found = first_divergence(Flat(tiny()), PROMPT, [0], [1])
    assert (found.margin, found.spacing, found.near_tie) == (1.0, 0.125, False)  # bf16 has 8 bits: 16 to 32 by eighths


def test_texts_are_compared_and_a_target_is_checked_on_a_device_without_float64(monkeypatch):
    """Apple's GPU has none: only a tensor that was brought to the CPU can be turned into one."""
    on_cpu, cpu, double = [], torch.Tensor.cpu, torch.Tensor.double

    def brought(tensor):
        on_cpu.append(cpu(tensor).clone())
        return on_cpu[-1]

    def only_on_cpu(tensor):
        assert any(tensor is one for one in on_cpu), "Cannot convert a MPS Tensor to float64 dtype"
        return double(tensor)

    target = TransformersTarget(tiny())
    monkeypatch.setattr(torch.Tensor, "cpu", brought)
    monkeypatch.setattr(torch.Tensor, "double", only_on_cpu)
    assert first_divergence(target, PROMPT, [1, 2], [1, 3]).same == 1
    assert agree(torch.ones(2, 5), torch.ones(2, 5))
