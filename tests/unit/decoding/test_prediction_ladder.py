"""The ladder: prices against numbers by hand, gains that multiply, and which rung counts."""

from dataclasses import replace

import pytest

from lessons_lib.decoding.generate import StepStats
from lessons_lib.decoding.prediction import Configuration, best, check_order, counting, step_gains, way_to
from lessons_lib.measure.cost import StepCost

PLAIN = StepCost(weight_bytes=800, kv_bytes=2, bandwidth=100)
PREFILL = StepStats(length_before=10, num_input_tokens=10, committed=1, is_prefill=True)
GUESSED = [PREFILL, StepStats(11, 3, 2, committed=3, draft_calls=2), StepStats(14, 1, committed=1)]


def configs() -> list[Configuration]:
    slow = Configuration("slow", None, PLAIN)
    halved = Configuration("halved", "slow", replace(PLAIN, weight_bytes=400))
    return [slow, halved, Configuration("fast", "halved", PLAIN), Configuration("aside", "slow", PLAIN)]


def test_a_step_reads_weights_and_the_cached_entries_or_all_slots():
    assert PLAIN.moved(100) == 1000 and PLAIN.forward(100) == pytest.approx(10)
    assert replace(PLAIN, slots=50).moved(100) == 900
    assert replace(PLAIN, slots=0).moved(100) == 800  # no slots are some slots


def test_launching_is_part_of_the_forward_that_width_multiplies():
    assert replace(PLAIN, launch=2, v={1: 1.0, 3: 1.5}).forward(100, 3) == pytest.approx(18)
    assert replace(PLAIN, launch=2, v={1: 1.0, 3: 1.5}).forward(100, 2) == pytest.approx(15)


def test_decoding_leaves_out_the_prefill_and_adds_what_happens_around():
    assert PLAIN.decoding([PREFILL]) == 0
    assert PLAIN.decoding(GUESSED) == pytest.approx(8.22 + 8.28)
    expensive = replace(PLAIN, v={1: 1.0, 3: 2.0}, host=0.5, draft=0.25)
    assert expensive.decoding(GUESSED) == pytest.approx(2 * 8.22 + 8.28 + 2 * 0.5 + 2 * 0.25)


def test_speed_counts_all_tokens_but_the_prefills():
    assert configs()[0].cost.speed(GUESSED, GUESSED) == pytest.approx(4 / 16.5)


def test_gains_along_a_way_multiply_to_the_whole():
    speeds = {"slow": 10.0, "halved": 25.0, "fast": 20.0, "aside": 5.0}
    gains = step_gains(configs(), speeds)
    assert gains == {"slow": 1, "halved": 2.5, "fast": 0.8, "aside": 0.5}
    way = way_to(configs(), "fast")
    assert [config.name for config in way] == ["slow", "halved", "fast"]
    assert gains["slow"] * gains["halved"] * gains["fast"] == pytest.approx(speeds["fast"] / speeds["slow"])


def test_what_was_not_measured_has_no_gain_and_gives_none():
    assert step_gains(configs(), {"slow": 10.0, "fast": 20.0, "aside": 5.0}) == {"slow": 1, "aside": 0.5}


def test_a_rung_counts_up_to_one_percent_of_perplexity_and_better_ones_do():
    found = {"same": 20.0, "near": 20.2, "far": 20.21, "better": 19.0}
    assert counting(found, 20.0) == {"same", "near", "better"}


def test_the_best_rung_is_the_fastest_that_counts():
    assert best({"a": 3.0, "b": 5.0, "c": 4.0}, {"a", "c", "not measured"}) == "c"
    with pytest.raises(ValueError, match="measure one of: d, e"):
        best({"a": 3.0}, {"e", "d"})


def test_a_ladder_has_no_rung_in_the_air_and_no_two_of_one_name():
    check_order(configs())
    with pytest.raises(ValueError, match="'fast' stands on 'halved'"):
        check_order([configs()[0], *configs()[2:]])
    with pytest.raises(ValueError, match="two configurations are called 'slow'"):
        check_order([*configs(), configs()[0]])
    with pytest.raises(ValueError, match="no rung 'middle'; choose one of: slow, halved, fast, aside"):
        way_to(configs(), "middle")
