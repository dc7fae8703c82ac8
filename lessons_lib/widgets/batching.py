"""Lesson 05's widget: a scheduler step by step, for a number of slots, a load, a spread of lengths and a policy."""

from functools import cache

from matplotlib.figure import Figure

from lessons_lib.figures.serving import plot_timeline_of_slots
from lessons_lib.serving.block_pool import CountingPool
from lessons_lib.serving.cost_model import Linear
from lessons_lib.serving.metrics import usage
from lessons_lib.serving.request import Log
from lessons_lib.serving.scheduler import Continuous, Dynamic, Scheduler, ShortestFirst, Static
from lessons_lib.serving.simulator import simulate
from lessons_lib.serving.workload import AtOnce, Exponential, Fixed, Lengths, Poisson, Uniform, Workload
from lessons_lib.widgets.controls import Slider, show

REQUESTS, MEAN = 16, 8  # small enough to follow each request
SPREADS: dict[str, Lengths] = {
    "all equal": Fixed(MEAN), "uniform": Uniform(1, 2 * MEAN - 1), "exponential": Exponential(MEAN, 5 * MEAN),
}  # fmt: skip
POLICIES = {
    "static": Static, "dynamic": lambda: Dynamic(window=4), "continuous": Continuous, "shortest first": ShortestFirst,
}  # fmt: skip
SLOTS = (1, 2, 4, 8)
LOADS = ("at once", "0.25", "0.5", "1")  # requests per iteration
STEPS = (*range(1, 25), *range(27, 64, 3), *range(70, 161, 10))


@cache
def run(slots: int, load: str, spread: str, policy: str) -> Log:
    """Sixteen requests through the scheduler; a forward takes 1, whatever is in it, so times are iterations.

    load, spread, policy: of LOADS, SPREADS, POLICIES, else KeyError or ValueError; ValueError for no slots.
    """
    arrivals = AtOnce() if load == "at once" else Poisson(float(load))
    requests = Workload(REQUESTS, Fixed(4), SPREADS[spread], arrivals).requests()
    scheduler = Scheduler(CountingPool(10_000), slots, POLICIES[policy]())
    return simulate(requests, scheduler, Linear(step=1.0))


def draw_batching(slots: int, load: str, spread: str, policy: str, step: int) -> Figure:
    """The slots up to this iteration, the queue below them; errors as `run`."""
    log = run(slots, load, spread, policy)
    title = f"{policy}: {_headline(log)}"
    return plot_timeline_of_slots(log, min(step, len(log.iterations)), title)


def describe_batching(slots: int, load: str, spread: str, policy: str, step: int) -> str:
    """The figure in words; errors as `run`."""
    log = run(slots, load, spread, policy)
    step = min(step, len(log.iterations))
    now = log.iterations[step - 1]
    finished = sum(request.times[-1] <= now.end for request in log.requests)
    working = ", ".join(f"request {share.id} in slot {share.slot + 1}" for share in now.shares) or "nobody"
    return (
        f"{policy} batching, {slots} slots, lengths {spread}, load {load}; iteration {step}: {working}; "
        f"{len(now.idle)} slots held by finished requests, {now.waiting} requests waiting, "
        f"{finished} of {len(log.requests)} finished. The whole run: {_headline(log)}."
    )


def _headline(log: Log) -> str:
    used = usage(log)
    return f"{used.iterations} iterations, {used.occupancy:.0%} of the slots worked"


def show_batching() -> None:
    """Sliders for slots, load, spread of the lengths, policy and iteration over a chart of slots and queue."""
    controls = {
        "slots": Slider("slots", SLOTS, 4),
        "load": Slider("requests/iteration", LOADS, "at once"),
        "spread": Slider("output lengths", tuple(SPREADS), "exponential"),
        "policy": Slider("policy", tuple(POLICIES), "continuous"),
        "step": Slider("iteration", STEPS, 24),
    }
    show(controls, draw_batching, describe_batching, static=[{"policy": "static"}, {"policy": "continuous"}])
