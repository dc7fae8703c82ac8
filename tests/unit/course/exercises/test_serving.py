"""Plausible wrong attempts at the exercises of the serving study fail, and the message says why."""

from math import ceil

import pytest


def stays_with_its_blocks(running, free):
    """Preempts without taking the blocks back."""
    running = list(running)
    while sum(tokens % 16 == 0 for tokens in running) > free:
        running.pop()
    return len(running)


def counts_those_who_left(running, free):
    need, running = sum(tokens % 16 == 0 for tokens in running), list(running)
    while need > free:
        free += ceil(running.pop() / 16)
    return len(running)


def earliest_first(running, free):
    running = list(running)
    while sum(tokens % 16 == 0 for tokens in running) > free:
        free += ceil(running.pop(0) / 16)
    return len(running)


def block_alone(ids):
    return [hash(tuple(ids[i : i + 16])) for i in range(0, len(ids) - 15, 16)]


def with_the_last_part(ids):
    return [hash(tuple(ids[: i + 16])) for i in range(0, len(ids), 16)]


def block_and_place(ids):
    return [hash((i, *ids[i : i + 16])) for i in range(0, len(ids) - 15, 16)]


def length_too(ids):
    return [hash((len(ids), *ids[: i + 16])) for i in range(0, len(ids) - 15, 16)]


def object_keys(ids):
    return [object() for _ in range(len(ids) // 16)]


def reads_only(weights, kv_bytes, flops, P, n):
    b = (40e9 - weights) / kv_bytes / (P + n)
    return 1 / (n * 40e9 / 1.555e12 / b + weights / 1.555e12)


def prompt_reads_only(weights, kv_bytes, flops, P, n):
    b = (40e9 - weights) / kv_bytes / (P + n)
    return 1 / (n * max(40e9 / 1.555e12, b * flops / 312e12) / b + P * flops / 312e12 * 0 + weights / 1.555e12)


def decoding_reads_only(weights, kv_bytes, flops, P, n):
    b = (40e9 - weights) / kv_bytes / (P + n)
    return 1 / (n * 40e9 / 1.555e12 / b + max(weights / 1.555e12, P * flops / 312e12))


@pytest.mark.parametrize(("name", "attempt", "why"), [
    ("05x.1", stays_with_its_blocks, "[16, 30, 5], 0) gave 0; expected 2"),
    ("05x.1", counts_those_who_left, "expected"),
    ("05x.1", earliest_first, "expected"),
    ("05x.2", block_alone, "a text says the same 16 tokens twice"),
    ("05x.2", block_and_place, "after two different ones got the same key"),
    ("05x.2", with_the_last_part, "a text of 1 tokens has 0 full blocks; you gave 1 keys"),
    ("05x.2", length_too, "one text begins with the other"),
    ("05x.2", object_keys, "one text begins with the other"),
    ("05x.3", reads_only, "expected"),
    ("05x.3", prompt_reads_only, "expected"),
    ("05x.3", decoding_reads_only, "(1000000000.0, 20000, 5000000000.0, 100, 400) gave"),
])  # fmt: skip
def test_a_plausible_wrong_attempt_fails(name, attempt, why, checked):
    said = checked(name, attempt)
    assert said.startswith(f"{name}: not yet") and why in said
