"""The study's workload and systems, and what the simulation of them must and need not reproduce."""

import pytest

from lessons_lib.decoding.sequence import Sequence
from lessons_lib.measure.cost import LinearCost, Load
from lessons_lib.serving import published
from lessons_lib.serving.block_pool import BlockPool
from lessons_lib.serving.scheduler import Scheduler, Static
from lessons_lib.serving.simulator import simulate


def test_the_devices_step_reads_all_weights_once():
    """26 GB at 1.555 TB/s."""
    assert published.device().seconds(Load(decode_tokens=1)) == pytest.approx(0.0167, rel=0.02)


def test_static_slots_fill_one_budget_with_worst_cases():
    for longest, slots in published.STATIC_MAX_NUM_SEQS.items():
        assert slots * (512 + longest) == pytest.approx(published.BATCH_TOKENS[longest], rel=0.03)


def test_throughput_counts_prompt_tokens_and_the_time_that_a_batch_runs_on():
    made = [Sequence(i, prompt_length=4, output_length=n) for i, n in enumerate((1, 2))]
    log = simulate(made, Scheduler(BlockPool(100), 2, Static(steps=5)), LinearCost(step=1.0))
    assert published.total_throughput(log) == (2 * 4 + 1 + 2) / 5


def test_the_table_has_every_system_at_every_m_and_its_published_value_where_there_is_one():
    rows = published.table(requests=40)
    assert len(rows) == 4 * 6 and all(row.simulated > 0 for row in rows)
    speed = {row.system: row.simulated for row in rows if row.longest == 1536}
    assert speed[published.RESERVED] < speed[published.WHOLE_MEMORY]  # the same with twice the memory
    known = [row for row in rows if row.published]
    assert [(row.longest, row.published) for row in known] == [(1536, 81), (1536, 324), (1536, 648), (1536, 1863)]
    assert [row.published_gain for row in known] == [1, 4, 8, 23]
    assert known[0].gain == 1
    assert all(1 <= row.concurrency <= 40 for row in rows)
    naive = {row.longest: row.concurrency for row in rows if row.system == published.NAIVE}
    assert all(naive[longest] <= slots for longest, slots in published.STATIC_MAX_NUM_SEQS.items())
    mixed = {name: of.mixed for name, of in published.systems(1536, published.workload(1536)).items()}
    assert mixed[published.SAME_SLOTS] is False
    assert rows == published.table(requests=40) != published.table(requests=40, seed=1)


def test_counted_in_iterations_alone_the_gains_are_those_of_the_lengths():
    made = published.workload(32)
    systems = published.systems(32, made)
    systems[published.SAME_SLOTS].mixed = True  # one pass an iteration, whether prompts are in it or not
    compared = published.NAIVE, published.BATCH_MAX, published.SAME_SLOTS
    logs = {name: simulate(made, systems[name], LinearCost(step=1.0)) for name in compared}
    naive, own, continuous = (log.iterations[-1].end for log in logs.values())
    assert naive / own == pytest.approx(1.06, rel=0.02) and naive / continuous == pytest.approx(2.04, rel=0.05)
