"""Checkers: the bytes of a step, gains of configurations, the price of draft tokens, what a request sees of a gain."""

from dataclasses import replace

from lessons_lib.course.exercises import exercise, expect
from lessons_lib.decoding.generate import StepStats
from lessons_lib.decoding.prediction import Configuration, step_gains
from lessons_lib.measure.config import CONFIGS
from lessons_lib.measure.cost import StepCost

SMOL, LLAMA = CONFIGS["smollm2-135m"], CONFIGS["llama-2-7b"]


@exercise("11.1")
def fastest(attempt):
    """Tokens per second if a step does nothing but read: layers and head in bits per weight, the cache in bytes."""
    for shape, layers, head, cached, rate in [
        (SMOL, 32, 32, 0, 30e9), (SMOL, 5, 8.5, 200, 30e9), (SMOL, 5, 8.5, 8000, 30e9), (LLAMA, 8, 16, 0, 2e12),
    ]:  # fmt: skip
        weights, entry = (shape.layer_weights, shape.head_weights), shape.kv_elements(1) * 2
        moved = StepCost((weights[0] * layers + weights[1] * head) / 8, entry, rate)
        expect(attempt, *weights, layers, head, entry, cached, rate, equals=1 / moved.forward(cached))


@exercise("11.2")
def gains(attempt):
    """Every configuration over the one that it stands on; the first is 1."""
    for speeds, below in [
        ({"eager": 25.5, "compiled": 107.0, "W8A8": 157.4}, {"eager": None, "compiled": "eager", "W8A8": "compiled"}),
        ({"a": 10.0, "b": 20.0, "c": 5.0}, {"a": None, "b": "a", "c": "a"}),
        ({"c": 30.0, "a": 10.0, "b": 60.0}, {"c": None, "a": "c", "b": "c"}),
    ]:
        configs = [Configuration(name, of, StepCost()) for name, of in below.items()]
        expect(attempt, speeds, below, equals=step_gains(configs, speeds))


@exercise("11.3")
def with_drafts(attempt):
    """Tokens per second: steps of so many rows that committed so many tokens, by a one-row time and a width curve."""
    curve = {1: 1.0, 3: 1.4, 5: 2.0}
    cost = StepCost(bandwidth=100.0, v=curve)
    for rows, committed, around in [([1, 1], [1, 1], 0.0), ([3, 5, 1], [3, 1, 1], 0.0), ([5, 5], [5, 4], 0.005)]:
        stats = [StepStats(0, w, committed=n) for w, n in zip(rows, committed, strict=True)]
        expect(attempt, rows, committed, 0.01, curve, around, equals=replace(cost, host=around).speed(stats))


@exercise("11.4")
def of_request(attempt):
    """How many times faster a whole request is if its decoding alone is so many times faster."""
    for prefill, decoding, times in [(0.0, 8.0, 6.0), (0.5, 8.0, 12.0), (1.0, 1.0, 1e9), (2.0, 6.0, 0.5)]:
        expect(attempt, prefill, decoding, times, equals=(prefill + decoding) / (prefill + decoding / times))
