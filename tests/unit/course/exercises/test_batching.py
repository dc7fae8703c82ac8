"""Plausible wrong attempts at the exercises on continuous batching fail, and the message says why."""

from statistics import mean

import pytest
import torch

from lessons_lib.course.exercises.batching import LONGEST_WAIT, MEAN_WAIT, served


def first_come(waiting, running, max_num_seqs):
    return waiting[: max_num_seqs - len(running)]


def shortest(waiting, running, max_num_seqs):
    return sorted(waiting, key=lambda r: r.max_new_tokens)[: max_num_seqs - len(running)]


def longest(waiting, running, max_num_seqs):
    return sorted(waiting, key=lambda r: -r.max_new_tokens)[: max_num_seqs - len(running)]


def one_at_a_time_unless_few(waiting, running, max_num_seqs):
    return shortest(waiting, running, max_num_seqs if len(waiting) < 4 else min(max_num_seqs, len(running)))


def too_many(waiting, running, max_num_seqs):
    return shortest(waiting, running if len(waiting) < 4 else [], max_num_seqs)


def fails_if_nobody_waits(waiting, running, max_num_seqs):
    least = min(r.max_new_tokens for r in waiting)
    return sorted(waiting, key=lambda r: r.max_new_tokens - least)[: max_num_seqs - len(running)]


def greedy_prompts(running, budget):
    counts = []
    for r in running:
        counts.append(min(len(r.ids) - r.cached, budget - sum(counts)))
    return counts


def no_cached_keys(new, cached):
    return torch.block_diag(*(torch.ones(n, c + n).tril() for n, c in zip(new, cached, strict=True))).bool()


def everybody_sees_all(new, cached):
    blocks = [torch.ones(n, c + n).tril(c) for n, c in zip(new, cached, strict=True)]
    return torch.block_diag(*blocks).bool() if len(blocks) == 1 else torch.ones(sum(new), sum(new) + sum(cached)).bool()


def numbers_for_bools(new, cached):
    return torch.block_diag(*(torch.ones(n, c + n).tril(c) for n, c in zip(new, cached, strict=True)))


def passes_alone(lengths, max_num_seqs, seconds):
    static = sum(max(lengths[i : i + max_num_seqs]) for i in range(0, len(lengths), max_num_seqs))
    return static / -(-sum(lengths) // max_num_seqs)


@pytest.mark.parametrize(("name", "attempt", "why"), [
    ("05.1", first_come, "expected [B, C]"),
    ("05.1", longest, "expected [B, C]"),
    ("05.1", shortest, "one request waits 240 passes"),
    ("05.1", one_at_a_time_unless_few, "the loop would never end"),
    ("05.1", too_many, "no more than there are free slots"),
    ("05.1", fails_if_nobody_waits, "your policy with 0 waiting and 0 running raised ValueError"),
    ("05.2", greedy_prompts, "gave [16, 0]; expected [15, 1]"),
    ("05.3", no_cached_keys, "expected tensor([[True, True, True, True]])"),
    ("05.3", everybody_sees_all, "expected tensor("),
    ("05.3", numbers_for_bools, "gave tensor([[1., 0., 0.]"),
    ("05.4", passes_alone, "rows -> 0 + 1 * rows) gave 1.428"),
])  # fmt: skip
def test_a_plausible_wrong_attempt_fails(name, attempt, why, checked):
    said = checked(name, attempt)
    assert said.startswith(f"{name}: not yet") and why in said


def test_only_a_policy_between_the_two_keeps_both_limits():
    fair, fast = served(first_come), served(shortest)
    assert mean(fair) > MEAN_WAIT > mean(fast)
    assert max(fast) > LONGEST_WAIT > max(fair)
