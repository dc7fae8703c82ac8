"""The chi-square test, against values of published tables."""

import pytest
import torch

from lessons_lib.measure.quality import chi_square


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
    with pytest.raises(ValueError, match="do not fit a law"):
        chi_square(torch.tensor([1, 1]), torch.tensor([1.0]))
