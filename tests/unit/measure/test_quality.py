"""Perplexity and agreement against sums done by hand, and the chi-square test against published tables."""

import math

import pytest
import torch
from torch import Tensor

from lessons_lib.measure import quality
from lessons_lib.measure.quality import chi_square

ROWS = torch.tensor([[0.5, 0.25, 0.25], [0.1, 0.8, 0.1], [0.2, 0.2, 0.6]], dtype=torch.float64)


def table(ids: list[int]) -> Tensor:
    """What follows a token depends on it alone; logits are probabilities' logarithms, and a constant."""
    return ROWS.log()[ids] + 3


def flat(ids: list[int]) -> Tensor:
    return torch.zeros(len(ids), 3)


def test_a_model_that_knows_nothing_is_as_perplexed_as_there_are_tokens():
    reading = quality.read(flat, [0, 1, 2, 2, 1, 0], window=3)
    assert reading.tokens == 4 and reading.perplexity == pytest.approx(3, abs=1e-12)


def test_every_token_but_the_first_of_a_window_is_predicted_from_those_before():
    ids = [0, 1, 1, 2, 2, 0, 1]
    reading = quality.read(table, ids, window=4)
    right = [[0.25, 0.8, 0.1], [0.2, 0.25]]
    assert [part.exp().reciprocal().tolist() for part in reading.nll] == [pytest.approx(part) for part in right]
    assert [part.tolist() for part in reading.best] == [[0, 1, 1], [2, 0]]
    assert reading.mean == pytest.approx(-sum(map(math.log, sum(right, []))) / 5)
    assert reading.nll[0].dtype == torch.float64


def test_windows_do_not_overlap_and_a_last_token_alone_is_left_out():
    assert quality.windows(range(7), 3) == [[0, 1, 2], [3, 4, 5]]
    assert quality.windows(range(8), 3) == [[0, 1, 2], [3, 4, 5], [6, 7]]


def test_sums_are_in_float64_even_of_bf16_logits():
    logits = torch.randn(300, 50, generator=torch.Generator().manual_seed(0)).bfloat16()
    reading = quality.read(lambda ids: logits, [i % 50 for i in range(300)], window=300)
    right = torch.nn.functional.cross_entropy(logits[:-1].double(), torch.tensor([i % 50 for i in range(1, 300)]))
    assert reading.mean == pytest.approx(right.item(), rel=1e-12)


def test_the_ratio_of_perplexities_is_that_of_their_values_and_pairs_windows():
    ids = [i * i % 3 for i in range(200)]
    one, other = quality.read(flat, ids, 20), quality.read(table, ids, 20)
    found = quality.ratio(one, other)
    assert found.value == pytest.approx(one.perplexity / other.perplexity, rel=1e-12)
    assert found.low < found.value < found.high
    same = quality.ratio(one, one)
    assert (same.low, same.value, same.high) == (1, 1, 1)


def test_the_interval_is_that_of_the_mean_of_paired_differences():
    """Equal windows: 1.96 standard errors of their mean differences."""
    parts = [torch.full((4,), x, dtype=torch.float64) for x in (0.1, 0.3, 0.2, 0.4)]
    none = [torch.zeros(4, dtype=torch.float64)] * 4
    best = tuple(torch.zeros(4, dtype=torch.long) for _ in parts)
    found = quality.ratio(quality.Reading(tuple(parts), best), quality.Reading(tuple(none), best))
    error = torch.tensor([0.1, 0.3, 0.2, 0.4], dtype=torch.float64).std().item() / 2
    assert found.value == pytest.approx(math.exp(0.25)) and found.high == pytest.approx(math.exp(0.25 + 1.96 * error))
    alone = quality.ratio(quality.read(flat, [0, 1, 2]), quality.read(table, [0, 1, 2]))
    assert alone.low == 0 and alone.high > 1e300


def test_agreement_is_the_share_of_equal_argmaxes():
    ids = [0, 0, 1, 2, 1, 0]
    one, other = quality.read(table, ids), quality.read(lambda ids: -table(ids), ids)
    assert quality.agreement(one, one) == 1 and quality.agreement(one, other) == 0
    half = quality.read(lambda ids: torch.where(torch.arange(len(ids))[:, None] < 3, 1, -1) * table(ids), ids)
    assert quality.agreement(half, one) == pytest.approx(3 / 5)


def test_the_divergence_is_that_of_the_model_beside():
    reading = quality.read(flat, [0, 1, 2], beside=table)
    right = [(row * (row * 3).log()).sum().item() for row in ROWS[:2]]
    assert torch.cat(reading.divergence).tolist() == pytest.approx(right) and reading.mean_divergence > 0
    assert quality.read(table, [0, 1, 2], beside=table).mean_divergence == 0
    with pytest.raises(ValueError, match="pass beside"):
        quality.read(table, [0, 1]).mean_divergence  # noqa: B018


def test_tokens_that_a_head_does_not_score_can_be_left_out():
    def trimmed(ids):
        return table(ids).index_fill(1, torch.tensor([2]), -torch.inf)

    with pytest.raises(ValueError, match="gives token 2 no probability at all; pass among="):
        quality.read(trimmed, [0, 1, 2, 0])
    reading = quality.read(trimmed, [0, 1, 2, 0], among=torch.tensor([True, True, False]))
    assert [part.exp().reciprocal().tolist() for part in reading.nll] == [pytest.approx([1 / 3, 0.5])]
    assert (
        quality.read(trimmed, [0, 1, 0], among=torch.tensor([True, True, False]), beside=trimmed).mean_divergence == 0
    )
    with pytest.raises(ValueError, match="no token of this text counts"):
        quality.read(table, [2, 2, 2], among=torch.tensor([True, True, False]))


@pytest.mark.parametrize("logits, ids, window, sentence", [
    (flat, [1], 512, "1 ids in windows of 512 are none"),
    (flat, [0, 3], 512, "ids from 0 to 3 do not fit logits of 3 tokens; check which tokenizer"),
    (lambda ids: flat(ids)[-1:], [0, 1, 2], 512, r"3 ids need logits \(3, V\), a row after each, not \(1, 3\)"),
    (lambda ids: flat(ids) * torch.nan, [0, 1, 2], 512, "hold NaN"),
])  # fmt: skip
def test_what_is_no_reading_is_refused(logits, ids, window, sentence):
    with pytest.raises(ValueError, match=sentence):
        quality.read(logits, ids, window)


def test_readings_of_different_texts_are_not_compared():
    one, other = quality.read(flat, [0, 1, 2]), quality.read(flat, [0, 1, 2, 1])
    for compare in (quality.ratio, quality.agreement):
        with pytest.raises(ValueError, match="the same text, window and among"):
            compare(one, other)


def test_statistic_and_chance_by_hand():
    statistic, chance = chi_square(torch.tensor([60, 40]), torch.tensor([0.5, 0.5]))
    assert statistic == pytest.approx(4.0) and chance == pytest.approx(0.0455, abs=1e-4)


@pytest.mark.parametrize("degrees, critical", [(1, 3.841), (2, 5.991), (8, 15.507)])
def test_the_published_critical_values_have_a_chance_of_a_twentieth(degrees, critical):
    cells, n = degrees + 1, 10_000
    distribution = torch.full((cells,), 1 / cells, dtype=torch.float64)
    shift = (critical * n / cells / 2) ** 0.5
    seen = torch.full((cells,), n / cells, dtype=torch.float64)
    seen[0], seen[1] = seen[0] + shift, seen[1] - shift
    statistic, chance = chi_square(seen, distribution)
    assert statistic == pytest.approx(critical, rel=1e-6) and chance == pytest.approx(0.05, abs=1e-4)


def test_cells_that_cannot_be_seen_are_no_degrees_of_freedom():
    with_one = chi_square(torch.tensor([60, 40, 0]), torch.tensor([0.5, 0.5, 0.0]))
    assert with_one == chi_square(torch.tensor([60, 40]), torch.tensor([0.5, 0.5]))


def test_the_impossible_and_the_misshapen_are_refused():
    with pytest.raises(ValueError, match="rules out"):
        chi_square(torch.tensor([1, 1]), torch.tensor([1.0, 0.0]))
    with pytest.raises(ValueError, match="do not fit a distribution"):
        chi_square(torch.tensor([1, 1]), torch.tensor([1.0]))
