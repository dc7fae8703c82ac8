"""Small runs of the simulator, a second an iteration, and who ran when."""

from lessons_lib.serving.block_pool import CountingPool
from lessons_lib.serving.cost_model import Linear
from lessons_lib.serving.request import Request
from lessons_lib.serving.scheduler import Scheduler
from lessons_lib.serving.simulator import simulate

UNIT = Linear(step=1.0)


def requests(outputs, prompt=1, arrivals=None):
    return [Request(i, (arrivals or [0] * len(outputs))[i], prompt, n) for i, n in enumerate(outputs)]


def run(made, slots=2, blocks=10_000, block_size=4, **settings):
    return simulate(made, Scheduler(CountingPool(blocks, block_size), slots, **settings), UNIT)


def chart(log):
    """Who ran in each iteration."""
    return [{share.id for share in iteration.shares} for iteration in log.iterations]


def finished(log):
    return [request.finished for request in log.requests]
