"""A table as a target: the loop reads it as it stands, and its distributions are the table's."""

import pytest
from support.distributions import exact_distribution

from lessons_lib import DraftModel, Sampling, generate
from lessons_lib.decoding.proposers import Proposer
from lessons_lib.decoding.targets.table import TableTarget

P = [[0.2, 0.7, 0.1], [0.1, 0.2, 0.7], [0.5, 0.3, 0.2]]
Q = [[0.3, 0.6, 0.1], [0.2, 0.2, 0.6], [0.2, 0.5, 0.3]]


def test_greedy_text_follows_the_largest_entries_with_a_draft_or_without():
    plain = generate(TableTarget(P), [2], max_new_tokens=7)
    drafted = generate(TableTarget(P), [2], DraftModel(TableTarget(Q), 3), max_new_tokens=7)
    assert plain.ids == drafted.ids == [0, 1, 2, 0, 1, 2, 0]
    assert [step.committed for step in drafted.stats] == [1, 3, 3]


def test_drafted_texts_have_exactly_the_tables_probabilities():
    def run():
        proposer = DraftModel(TableTarget(Q), 2, mode="iid")
        return tuple(generate(TableTarget(P), [2], proposer, Sampling(), max_new_tokens=3).ids)

    distribution = exact_distribution(run)
    assert sum(distribution.values()) == pytest.approx(1)
    for (x, y, z), chance in distribution.items():
        assert chance == pytest.approx(P[2][x] * P[x][y] * P[y][z], abs=1e-12)


@pytest.mark.parametrize("rows", [[[0.5, 0.5]], [[0.5, 0.6], [0.5, 0.5]]])
def test_rows_that_are_no_distributions_are_refused(rows):
    with pytest.raises(ValueError, match="one row per token"):
        TableTarget(rows)


def test_branches_are_refused():
    class Fork(Proposer):
        def propose(self, ids, tree):
            tree.add(-1, 0)
            tree.add(-1, 1)

    with pytest.raises(ValueError, match="chains only"):
        generate(TableTarget(P), [2], Fork(), max_new_tokens=4)
