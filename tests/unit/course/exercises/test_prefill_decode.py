"""Plausible wrong attempts at the exercises on prefill and decode fail, and the message says why."""

import pytest
import torch

from lessons_lib.course.exercises.prefill_decode import Toy
from lessons_lib.measure import cost


def top_p_without_the_token_that_reaches_it(logits, top_p):
    p = logits.softmax(-1)
    ordered, order = p.sort(descending=True, dim=-1)
    kept = torch.zeros_like(p).scatter(-1, order, ordered * (ordered.cumsum(-1) <= top_p))
    return kept / kept.sum(-1, keepdim=True)


def token_by_token(decoder, ids):
    rows = [decoder.logits(decoder(ids[:t])[-1]).log_softmax(-1)[ids[t]] for t in range(1, len(ids))]
    return torch.stack(rows)


def off_by_one(decoder, ids):
    return decoder.logits(decoder(ids)).log_softmax(-1)[1:].gather(-1, ids[1:, None])[:, 0]


def forgets_the_text(decoder, ids, max_new_tokens):
    logits = decoder.logits(decoder(ids))
    for _ in range(max_new_tokens):
        new = logits[-1].argmax(-1, keepdim=True)
        ids = torch.cat([ids, new])
        logits = decoder.logits(decoder(new))
    return ids


def one_pass_too_many(decoder, ids, max_new_tokens):
    logits = decoder.logits(decoder(ids))
    for _ in range(max_new_tokens):
        ids = torch.cat([ids, logits[-1].argmax(-1, keepdim=True)])
        logits = decoder.logits(decoder(ids))
    return ids


def ignoring_memory(config, cached, limit, bandwidth, flop_rate, memory):
    users = 0
    while (
        cost.bytes_decode(config, users + 1, cached) / bandwidth
        + cost.flops_decode(config, users + 1, cached) / flop_rate
        <= limit
    ):
        users += 1
    return users


@pytest.mark.parametrize(("name", "attempt", "why"), [
    ("01.1", top_p_without_the_token_that_reaches_it, "expected tensor([0., 1., 0., 0.]"),
    ("01.2", token_by_token, "5 forward passes for 6 tokens; one is enough."),
    ("01.2", off_by_one, "expected tensor("),
    ("01.3", forgets_the_text, "expected tensor("),
    ("01.3", one_pass_too_many, "7 forward passes for 6 new tokens; 6 are enough."),
    ("01.4", ignoring_memory, "gave 141; expected 109"),
])  # fmt: skip
def test_a_plausible_wrong_attempt_fails(name, attempt, why, checked):
    said = checked(name, attempt)
    assert said.startswith(f"{name}: not yet") and why in said


def test_the_toys_greedy_text_varies_so_that_a_wrong_loop_is_seen():
    ids = torch.tensor([2, 5, 1])
    for _ in range(6):
        toy = Toy()
        ids = torch.cat([ids, toy.logits(toy(ids)[-1]).argmax(-1, keepdim=True)])
    assert len(set(ids[3:].tolist())) >= 4
