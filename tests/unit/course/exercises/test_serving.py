"""Plausible wrong attempts at the exercises of the serving study fail, and the message says why."""

from math import ceil

import pytest


def batches(arrivals, lengths, slots, seconds, idle_waits=True, held=True):
    """Static batches with a mistake: without idle_waits all come at once; without held, rows leave when they end."""
    now, coming, first = 0.0, 0, [None] * len(lengths)
    while coming < len(lengths):
        now, batch = max(now, arrivals[coming] if idle_waits else 0), []
        while coming < len(lengths) and (arrivals[coming] <= now or not idle_waits) and len(batch) < slots:
            batch.append(coming)
            coming += 1
        for n in range(max(lengths[request] for request in batch)):
            now += seconds(len(batch) if held else sum(lengths[request] > n for request in batch))
            for request in batch:
                first[request] = first[request] or now - arrivals[request]
    return first


def never_idle(arrivals, lengths, slots, seconds):
    return batches(arrivals, lengths, slots, seconds, idle_waits=False)


def without_the_rows_that_ended(arrivals, lengths, slots, seconds):
    return batches(arrivals, lengths, slots, seconds, held=False)


def continuous(arrivals, lengths, slots, seconds):
    """The lesson's own queue: free slots are filled before every pass."""
    now, coming, running, first = 0.0, 0, {}, [None] * len(lengths)
    while coming < len(lengths) or running:
        now = now if running else max(now, arrivals[coming])
        while coming < len(lengths) and arrivals[coming] <= now and len(running) < slots:
            running[coming] = lengths[coming]
            coming += 1
        now += seconds(len(running))
        first = [now - arrivals[i] if i in running and f is None else f for i, f in enumerate(first)]
        running = {request: left - 1 for request, left in running.items() if left > 1}
    return first


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
    return 1 / (n * max(40e9 / 1.555e12, b * flops / 312e12) / b + weights / 1.555e12)


def decoding_reads_only(weights, kv_bytes, flops, P, n):
    b = (40e9 - weights) / kv_bytes / (P + n)
    return 1 / (n * 40e9 / 1.555e12 / b + max(weights / 1.555e12, P * flops / 312e12))


@pytest.mark.parametrize(("name", "attempt", "why"), [
    ("05x.1", continuous, "expected [1, 1, 5, 1]"),
    ("05x.1", never_idle, "expected [1, 1, 5, 1]"),
    ("05x.1", without_the_rows_that_ended, "expected [3, 3, 11]"),
    ("05x.3", stays_with_its_blocks, "[16, 30, 5], 0) gave 0; expected 2"),
    ("05x.3", counts_those_who_left, "expected"),
    ("05x.3", earliest_first, "expected"),
    ("05x.4", block_alone, "a text says the same 16 tokens twice"),
    ("05x.4", block_and_place, "after two different ones got the same key"),
    ("05x.4", with_the_last_part, "a text of 1 tokens has 0 full blocks; you gave 1 keys"),
    ("05x.4", length_too, "one text begins with the other"),
    ("05x.4", object_keys, "one text begins with the other"),
    ("05x.2", reads_only, "expected"),
    ("05x.2", prompt_reads_only, "expected"),
    ("05x.2", decoding_reads_only, "(1000000000.0, 20000, 5000000000.0, 100, 400) gave"),
])  # fmt: skip
def test_a_plausible_wrong_attempt_fails(name, attempt, why, checked):
    said = checked(name, attempt)
    assert said.startswith(f"{name}: not yet") and why in said
