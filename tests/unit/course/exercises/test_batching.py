"""Lesson 05's policies: what passes, what almost does, and what the reader is told."""

import pytest

from lessons_lib.course.exercises import batching
from lessons_lib.serving.scheduler import Continuous, ShortestFirst


def policy(order):
    """A policy class with this order."""
    return type("Policy", (Continuous,), {"order": lambda self, requests, now: order(requests, now)})


def aged(speed):
    """Priority, and so many points an iteration for waiting."""
    return policy(lambda requests, now: sorted(requests, key=lambda r: r.priority - speed * (now - r.arrival)))


by_priority = policy(lambda requests, now: sorted(requests, key=lambda r: r.priority))
aged_but_one = policy(lambda requests, now: sorted(requests, key=lambda r: (r.id == 41, r.priority - now + r.arrival)))
longest_first = policy(lambda requests, now: sorted(requests, key=lambda r: r.num_output_tokens - r.max_tokens))


@pytest.mark.parametrize("name, attempt, said", [
    ("05.3", ShortestFirst, "05.3: passed"),
    ("05.3", Continuous, "05.3: not yet. the mean latency is 173 iterations"),
    ("05.3", longest_first, "05.3: not yet. the mean latency is 260 iterations"),
    ("05.3", policy(lambda requests, now: [r.deadline for r in requests]), "it raised AttributeError"),
    ("05.3", policy(lambda requests, now: []), "it raised RuntimeError"),
    ("05.3", lambda: None, "None is no policy; make a class on top of Continuous"),
    ("05.4", Continuous, "05.4: not yet. urgent requests wait 46 iterations"),
    ("05.4", by_priority, "05.4: not yet. somebody waits 258 iterations"),
    ("05.4", aged_but_one, "05.4: not yet. somebody waits 559 iterations"),  # an urgent one
    ("05.4", aged(5), "05.4: not yet. urgent"),
    ("05.4", aged(1), "05.4: passed"),
])  # fmt: skip
def test_a_policy_is_judged_by_how_long_requests_wait(name, attempt, said, checked):
    assert said in checked(name, attempt)


@pytest.mark.parametrize("attempt, urgent, anybody, said", [
    (Continuous, 99, 1, "somebody waits 88 iterations"),
    (by_priority, 1, 999, "urgent requests wait 10 iterations"),
])  # fmt: skip
def test_what_the_exercise_says_of_two_policies_is_so(attempt, urgent, anybody, said, checked, monkeypatch):
    monkeypatch.setattr(batching, "URGENT", urgent)
    monkeypatch.setattr(batching, "ANYBODY", anybody)
    assert said in checked("05.4", attempt)


@pytest.mark.parametrize("name, wrong", [
    ("05.1", lambda prompt, output, size: -(-(prompt + output) // size)),  # the newest token is not fed
    ("05.1", lambda prompt, output, size: (prompt + output - 1) // size),
    ("05.2", lambda outputs, slots: (sum(max(outputs[i:i + slots]) for i in range(0, len(outputs), slots)),
                                     -(-sum(outputs) // slots))),
])  # fmt: skip
def test_the_usual_mistakes_are_seen(name, wrong, checked):
    assert checked(name, wrong).startswith(f"{name}: not yet")
