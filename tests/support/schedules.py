"""Small runs of the simulator, a second an iteration, and who ran when."""

from lessons_lib.decoding.sequence import Sequence
from lessons_lib.measure.cost import LinearCost
from lessons_lib.serving.block_pool import BlockPool
from lessons_lib.serving.scheduler import Scheduler
from lessons_lib.serving.simulator import simulate

UNIT = LinearCost(step=1.0)


def requests(outputs, prompt=1, arrivals=None):
    return [Sequence(i, (arrivals or [0] * len(outputs))[i], prompt, n) for i, n in enumerate(outputs)]


def run(made, max_num_seqs=2, blocks=10_000, block_size=4, **settings):
    return simulate(made, Scheduler(BlockPool(blocks, block_size), max_num_seqs, **settings), UNIT)


def commit(scheduler, plan, committed, now):
    """What a backend does and then the loop: the sequences get their tokens, the scheduler frees what ended."""
    for row, tokens in zip(plan.rows, committed, strict=True):
        row.seq.commit(row.tokens, tokens)
    return scheduler.commit(plan, committed, now)


def fed(plan):
    """Who runs in the step, and with how many tokens."""
    return [(row.seq, row.tokens) for row in plan.rows]


def chart(log):
    """Who ran in each iteration."""
    return [{share.id for share in iteration.shares} for iteration in log.iterations]


def finished(log):
    return [request.finished for request in log.requests]
