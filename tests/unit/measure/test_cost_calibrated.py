"""The calibrated cost model: its sums, and that fitting reproduces what it was fitted to."""

import pytest

from lessons_lib.measure import machine
from lessons_lib.measure.config import ModelConfig
from lessons_lib.measure.cost import CalibratedCost
from lessons_lib.measure.machine import Hardware

SHAPE = ModelConfig("toy", 2, 8, 2, 1, 4, 16, 100, 64)
HARDWARE = Hardware("cpu", "toy", 1, 10.0, 100.0, {"bf16": 50.0}, {"bf16": 1000.0})
COST = CalibratedCost(SHAPE, HARDWARE, "bf16", {4: 2.0, 8: 3.0}, {1: 1.0, 2: 1.5})


def test_a_decode_step_is_products_plus_the_bytes_of_every_cache():
    per_token = 2 * 2 * 1 * 4 * 2  # K and V, 2 layers, 1 head of 4, 2 bytes
    assert COST.decode(1, 0) == 1.0
    assert COST.decode(2, 10) == pytest.approx(1.5 + 2 * 10 * per_token / 100)


def test_a_prefill_is_products_plus_causal_attention():
    assert COST.prefill(4) == pytest.approx(2.0 + 4 * 2 * 2 * 4 * 10 / 1000)


def test_a_request_is_one_prefill_and_a_step_for_each_further_token():
    prefill, later = COST.request(4, 3)
    assert (prefill, later) == (COST.prefill(4), pytest.approx(COST.decode(1, 5) + COST.decode(1, 6)))


def test_fitting_reproduces_the_prefill_it_was_fitted_to_and_replaces_an_older_fit():
    fitted = COST.fitted(8, 30.0).fitted(8, 40.0)
    assert fitted.prefill(8) == pytest.approx(40.0)
    assert fitted.decode(1, 0) == COST.decode(1, 0)


def test_the_overhead_per_token_is_never_negative():
    assert COST.fitted(8, 0.1).per_token == 0.0


def test_launching_is_added_to_every_step_and_to_a_prefill():
    launching = COST.with_launches({1: 0.5, 2: 0.75})
    assert launching.decode(2, 0) == 1.5 + 0.75
    assert launching.prefill(4) == pytest.approx(COST.prefill(4) + 0.5)


def test_measuring_times_every_length_and_batch_and_always_one_row(monkeypatch):
    asked = []
    monkeypatch.setattr(machine, "linears", lambda *args: asked.append(args[3:]) or 1.0 / len(asked))
    cost = machine.calibrate(SHAPE, HARDWARE, "bf16", prompts=[4, 8], batches=[2])
    assert asked == [(1, 1)] * 2 + [(2, 2)] * 2 + [(4, 1)] * 2 + [(8, 1)] * 2
    assert cost.steps == {1: 1 / 2, 2: 1 / 4} and cost.prompts == {4: 1 / 6, 8: 1 / 8}  # the faster of two


def test_rates_follow_from_the_products():
    assert COST.bandwidth == SHAPE.weights * 2 / 1.0
    assert COST.flop_rate == 2 * (SHAPE.layer_weights * 8 + SHAPE.head_weights) / 3.0
