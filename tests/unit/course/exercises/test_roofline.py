"""Lesson 00's exercises: a bandwidth measured with one mistake does not pass, and the counts are the cost model's."""

import pytest

from lessons_lib.course.exercises import roofline
from lessons_lib.measure import CONFIGS, cost

BIG = 2**31


def right(read):
    read(BIG)
    return BIG / min(read(BIG) for _ in range(5))


def in_cache(read):
    read(2**20)
    return 2**20 / min(read(2**20) for _ in range(5))


def in_the_largest_cache(read):
    read(2**27)
    return 2**27 / min(read(2**27) for _ in range(5))


def cold(read):
    return BIG / read(BIG)


def mean(read):
    read(BIG)
    return BIG / (sum(read(BIG) for _ in range(6)) / 6)


def with_calls(read):
    """Reads more than the cache of a GPU, but little enough for its calls to count."""
    size = 2**26 if read.name == "a GPU" else BIG
    read(size)
    return size / min(read(size) for _ in range(5))


@pytest.mark.parametrize("attempt, fails_on", [
    (in_cache, "a laptop"), (in_the_largest_cache, "a server with a large cache"), (cold, "a laptop"),
    (mean, "a laptop"), (with_calls, "a GPU"),
])  # fmt: skip
def test_a_bandwidth_measured_with_a_mistake_does_not_pass(attempt, fails_on, checked):
    assert checked("00.3", attempt).startswith(f"00.3: not yet. {attempt.__name__}({fails_on}) gave ")


def test_a_bandwidth_measured_with_care_passes(checked):
    assert checked("00.3", right) == "00.3: passed\n"


@pytest.mark.parametrize("nbytes", [0, -1, 2**40])
def test_a_simulated_machine_says_what_it_can_read(nbytes):
    with pytest.raises(ValueError, match="reads from 1 to 8,589,934,592 bytes"):
        roofline.Simulated("a laptop", 1e9, 10, 1e9)(nbytes)


@pytest.mark.parametrize("name", ["llama-2-7b", "smollm2-135m"])
@pytest.mark.parametrize("cached", [0, 64, 512])
def test_the_first_compute_bound_batch_agrees_with_the_cost_model(name, cached):
    config, ridge = CONFIGS[name], 40.0

    def compute_bound(batch):
        return cost.flops_decode(config, batch, cached) / cost.bytes_decode(config, batch, cached) >= ridge

    first = roofline._first(config, cached, ridge)
    assert (first is None) == (not compute_bound(roofline.MOST))
    assert first is None or (compute_bound(first) and not compute_bound(first - 1))
