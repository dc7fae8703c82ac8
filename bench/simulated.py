"""Claims of lesson 05 about the simulator: its error against the engine on the same requests, and its own speed."""

from collections.abc import Callable
from functools import cache
from statistics import median

from bench import serving
from bench.registry import Measured, Run, claim
from bench.serving import ENGINE
from lessons_lib.measure.clock import Ratio, Samples, timed
from lessons_lib.models.hub import dtype_name
from lessons_lib.progress import bar
from lessons_lib.serving import metrics
from lessons_lib.serving.block_pool import BlockPool
from lessons_lib.serving.cost_model import Linear, fit, steps
from lessons_lib.serving.loop import Log
from lessons_lib.serving.scheduler import Scheduler
from lessons_lib.serving.simulator import simulate
from lessons_lib.serving.workload import Fixed, Workload

TERMS = ("step", "prefill_step", "prefill_token", "prefill_pair", "decode_step", "decode_token", "kv_token")


@cache
def trace_runs(run: Run) -> list[tuple[Log, Log]]:
    """(engine's log, simulator's log) of the same requests, a few times, calibrated before and after each."""
    found, asked = [], serving.requests(run)
    for i in bar(range(1 if run.quick else 5), desc="engine and simulator", unit="run"):
        before = steps(serving.serve(serving.workload(24, seed=100 + 2 * i)))
        log = serving.serve(asked)
        after = steps(serving.serve(serving.workload(24, seed=101 + 2 * i)))
        found.append((log, simulate(asked, serving.scheduler(), fit(before + after, TERMS), padded=False)))
    return found


def simulated_error(run: Run, measure: Callable[[Log], dict[str, float]]) -> Measured:
    """The median over the runs of the worst |simulated / measured - 1| of the log's figures."""
    pairs = [(measure(real), measure(simulated)) for real, simulated in trace_runs(run)]
    errors = [{name: abs(simulated[name] / real[name] - 1) for name in real} for real, simulated in pairs]
    worst = [max(of.values()) for of in errors]
    each = {name: median(of[name] for of in errors) for name in errors[0]}
    said = ", ".join(f"{name} {error:.1%}" for name, error in each.items())
    return Measured(
        Ratio(median(worst), min(worst), max(worst), Samples(tuple(worst)), Samples((1.0,) * len(worst))),
        f"{said}; {dtype_name(serving.model().dtype)}; the interval is that of the runs",
        {"errors": each, "unit": "relative error", "dtype": dtype_name(serving.model().dtype)},
    )


@claim(
    "simulator/throughput-error", "<= 0.10", f"{ENGINE}, the same requests; calibrated on others before and after",
    unit="",
)  # fmt: skip
def throughput_error(run: Run) -> Measured:
    return simulated_error(run, lambda log: {"output": metrics.latency(log.requests).output_throughput})


@claim(
    "simulator/latency-error", "<= 0.20",
    f"{ENGINE}, the same requests; the worst of TTFT and ITL at p50 and p90; calibrated on others before and after",
    unit="",
)  # fmt: skip
def latency_error(run: Run) -> Measured:
    def measure(log: Log) -> dict[str, float]:
        found = metrics.latency(log.requests)
        return {f"{name} p{p}": getattr(found, name)[p] for name in ("ttft", "itl") for p in (50, 90)}

    return simulated_error(run, measure)


@claim(
    "simulator/requests-per-second",
    ">= 170",
    "872 prompt and 128 output tokens a request, one core",
    unit="/s",
    dtype="",
)
def requests_per_second(run: Run) -> Measured:
    count, slots = 100 if run.quick else 1000, serving.SLOTS
    asked = Workload(count, Fixed(872), Fixed(128)).requests()
    cost = Linear(step=0.01, prefill_token=1e-4, decode_token=1e-3)
    taken = timed(lambda: simulate(asked, Scheduler(BlockPool(4096), slots), cost), repeats=run.repeats, warmup=1)
    return Measured(
        Ratio.of(Samples((float(count),) * run.repeats), taken),
        f"{count} requests, {slots} slots",
        {"unit": "requests, s"},
    )
