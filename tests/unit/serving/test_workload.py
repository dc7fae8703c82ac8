"""Lengths, arrivals, workloads and chats."""

from random import Random
from statistics import fmean

import pytest

from lessons_lib.serving.workload import (
    AtOnce,
    Conversations,
    Exponential,
    Fixed,
    Listed,
    Poisson,
    Uniform,
    Workload,
)


def sampled(lengths, count=20_000):
    rng = Random(0)
    return [lengths.draw(rng) for _ in range(count)]


@pytest.mark.parametrize("longest, expected", [(32, 15.3), (128, 53.5), (512, 118.4), (1536, 128.0)])
def test_sampling_again_above_the_cap_lowers_the_mean(longest, expected):
    """The means of the continuous-batching study."""
    lengths = Exponential(128, longest, reject=True)
    assert lengths.expected == pytest.approx(expected, abs=0.06)
    assert fmean(sampled(lengths)) == pytest.approx(expected, rel=0.03)


def test_a_cap_far_above_the_mean_changes_nothing():
    assert Exponential(1, 1000, reject=True).expected == Exponential(1, 1000).expected == 1


def test_a_capped_exponential_piles_up_at_the_cap():
    seen = sampled(Exponential(48, 192))
    assert fmean(seen) == pytest.approx(Exponential(48, 192).expected, rel=0.03) and max(seen) == 192
    assert seen.count(192) / len(seen) == pytest.approx(0.0183, abs=0.004)  # e^-4
    assert min(sampled(Exponential(0.01, 4))) == 1


def test_other_lengths_are_what_their_names_say():
    assert set(sampled(Fixed(7), 10)) == {7}
    assert set(sampled(Uniform(2, 4))) == {2, 3, 4}
    assert set(sampled(Listed((3, 9)))) == {3, 9}


def test_poisson_arrivals_have_their_rate():
    poisson = Poisson(4.0).times(8000, Random(1))
    assert 8000 / poisson[-1] == pytest.approx(4, rel=0.05)
    assert poisson == sorted(poisson) and len(set(poisson)) == 8000
    assert AtOnce().times(3, Random(1)) == [0, 0, 0]


def test_a_seed_makes_the_same_workload_and_a_rate_changes_no_length():
    def lengths(**changes):
        return [(r.prompt_length, r.output_length) for r in Workload(**changes).requests()]

    def times(**changes):
        return [r.arrival for r in Workload(arrivals=Poisson(1.0), **changes).requests()]

    assert lengths() == lengths() == lengths(arrivals=Poisson(2.0)) != lengths(seed=1)
    assert times() == times() != times(seed=1)


def test_ids_come_with_a_vocabulary():
    requests = Workload(count=5, vocab_size=50).requests()
    assert all(len(r.ids) == r.prompt_length and max(r.ids) < 50 for r in requests)
    assert Workload(count=1).requests()[0].ids is None
    assert Workload(count=1, max_tokens=500).requests()[0].max_tokens == 500


def test_each_turn_of_a_chat_repeats_all_before_it():
    chats = Conversations(count=2, turns=3, system=10, pause=5.0, arrivals=Poisson(1.0)).requests()
    first, second, other = chats[0], chats[1], chats[3]
    assert second.ids[: first.prompt_length] == first.ids
    assert second.ids[first.prompt_length :][: first.output_length] == first.reply
    assert second.arrival == first.arrival + 5 and len(first.reply) == first.output_length
    assert other.ids[:10] == first.ids[:10] and other.ids[10:] != first.ids[10:]
    assert [r.id for r in chats] == ["0.0", "0.1", "0.2", "1.0", "1.1", "1.2"]


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: Poisson(-1), "rate must be positive, not -1"),
        (lambda: Fixed(0), "count must be positive"),
        (lambda: Uniform(5, 4), "from low to high"),
        (lambda: Listed(()), "at least one"),
        (lambda: Workload(count=0).requests(), "at least one request"),
    ],
)
def test_impossible_workloads_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
