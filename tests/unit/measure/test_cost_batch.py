"""What a forward costs: loads counted by hand, the roofline's own formulas, and prices found again by the fit."""

from dataclasses import asdict
from random import Random

import pytest

from lessons_lib.decoding.sequence import Sequence
from lessons_lib.measure import cost
from lessons_lib.measure.config import CONFIGS
from lessons_lib.measure.cost import LinearCost, Load, RooflineCost, fit
from lessons_lib.serving.scheduler import Plan
from lessons_lib.serving.simulator import load_of

SMALL, RATE, BANDWIDTH = CONFIGS["smollm2-135m"], 2e11, 3e10


def request(prompt, computed=0, emitted=0):
    made = Sequence(0, 0, prompt, 100)
    made.num_computed_tokens, made.num_output_tokens = computed, emitted
    return made


def test_a_load_counts_prompts_and_decoding_rows_apart():
    assert load_of(Plan([(request(4), 4)])) == Load(4, 1 + 2 + 3 + 4, 1, 0, 0)
    assert load_of(Plan([(request(4, 1), 2)])) == Load(2, 2 + 3, 1, 0, 0)  # a chunk attends to what is cached
    assert load_of(Plan([(request(4, 6, 3), 1)])) == Load(0, 0, 0, 1, 7)
    assert load_of(Plan([(request(4, 6, 3), 3)])) == Load(0, 0, 0, 3, 9)  # two guesses
    assert load_of(Plan([(request(4, 0, 3), 7)])) == Load(7, 28, 1, 0, 0)  # preempted: rebuilt as a prompt
    assert load_of(Plan([], idle=[request(4, 6, 3)])) == Load(0, 0, 0, 1, 7)
    assert load_of(Plan([], idle=[request(4, 6, 3)]), padded=False) == Load()
    assert load_of(Plan([(request(4), 4), (request(4, 6, 3), 1)])) == Load(4, 10, 1, 1, 7)


def seconds(flops, moved):
    return cost.bracket(flops, moved, RATE, BANDWIDTH).low


@pytest.mark.parametrize("batch, cached", [(1, 0), (1, 500), (16, 1000), (64, 20)])
def test_the_analytic_model_is_the_roofline_of_a_decode_step(batch, cached):
    predicted = RooflineCost(SMALL, RATE, BANDWIDTH).seconds(Load(decode_tokens=batch, kv_tokens=batch * cached))
    flops, moved = cost.flops_decode(SMALL, batch, cached), cost.bytes_decode(SMALL, batch, cached)
    assert predicted == pytest.approx(seconds(flops, moved))


@pytest.mark.parametrize("tokens", [1, 10, 1000])
def test_the_analytic_model_is_the_roofline_of_a_prefill(tokens):
    predicted = RooflineCost(SMALL, RATE, BANDWIDTH).seconds(Load(tokens, tokens * (tokens + 1) // 2, 1))
    flops, moved = cost.flops_prefill(SMALL, tokens), cost.bytes_prefill(SMALL, tokens)
    assert predicted == pytest.approx(seconds(flops, moved))


def test_prompts_in_chunks_cost_the_same_compute():
    compute = RooflineCost(SMALL, RATE, bandwidth=1e30)  # reading takes no time
    parts = [load_of(Plan([(request(30, done), 10)])) for done in (0, 10, 20)]
    whole = load_of(Plan([(request(30), 30)]))
    assert sum(map(compute.seconds, parts)) == pytest.approx(compute.seconds(whole) + 2 * 2 * SMALL.head_weights / RATE)


def test_narrow_weights_read_faster_and_overhead_is_added():
    one = Load(decode_tokens=1)
    wide, narrow = (RooflineCost(SMALL, RATE, BANDWIDTH, weight_bytes=e).seconds(one) for e in (2, 1))
    assert wide == pytest.approx(2 * narrow)
    assert RooflineCost(SMALL, RATE, BANDWIDTH, overhead=0.5).seconds(one) == pytest.approx(wide + 0.5)


def test_windowed_attention_is_refused():
    with pytest.raises(ValueError, match="windowed attention"):
        RooflineCost(CONFIGS["mistral-7b-v0.1"], RATE, BANDWIDTH)


def loads(count, seed):
    rng = Random(seed)
    tokens = [rng.choice((0, 16, 64, 256)) for _ in range(count)]
    return [
        Load(t, t * (t + 1) // 2, int(t > 0), b, b * rng.choice((64, 256, 1024)))
        for t, b in zip(tokens, rng.choices((0, 1, 4, 16), k=count), strict=True)
    ]


PRICES = LinearCost(step=0.04, prefill_token=1e-3, prefill_pair=2e-7, decode_token=2e-3, kv_token=1e-6)


def test_the_fit_finds_the_prices_again():
    found = fit([(work, PRICES.seconds(work)) for work in loads(40, 0)])
    assert asdict(found) == pytest.approx(asdict(PRICES), rel=1e-6)


def test_the_fit_predicts_steps_it_has_not_seen_in_spite_of_noise():
    rng = Random(2)
    found = fit([(work, PRICES.seconds(work) * rng.uniform(0.9, 1.1)) for work in loads(60, 0)])
    assert all(found.seconds(work) == pytest.approx(PRICES.seconds(work), rel=0.1) for work in loads(30, 1))


def test_no_price_is_negative_and_what_was_never_seen_is_free():
    steps = [(Load(decode_tokens=b), 1.0 - 0.01 * b) for b in range(1, 9)]  # wider is faster: noise, not a price
    found = fit(steps)
    assert found.decode_token == found.prefill_token == 0 and 0.9 < found.step < 1


def test_the_fit_weighs_relative_errors():
    """One forward of 1 s and one of 100 s, the same count: the price is off by as much of each, not by as many s."""
    one = Load(prefill_tokens=1, prompts=1)
    found = fit([(one, 1.0), (one, 100.0)], terms=("prefill_token",))
    assert found.prefill_token == pytest.approx((1 + 0.01) / (1 + 0.0001))


def test_too_few_steps_are_refused():
    with pytest.raises(ValueError, match="4 steps cannot fix 5 prices"):
        fit([(Load(), 1.0)] * 4)
