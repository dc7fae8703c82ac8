"""Claims of lesson 05: the engine against other ways of serving, and the simulator's error and speed.

48 requests at once, prompts of 16 to 128 random tokens, output lengths exponential with mean 48 and cap 192, 16 slots,
256 blocks of 32 tokens; in the dtype in which this machine is fast. The engine runs compiled if there is a compiler.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from statistics import median

import torch
from torch import Tensor

from bench import vllm
from bench.common import Measured, Run, claim
from lessons_lib import load
from lessons_lib.caches.paged import Pages
from lessons_lib.compiler import CompiledStep
from lessons_lib.decoding.sequence import Sequence
from lessons_lib.measure.clock import Ratio, Samples, compare, sync, timed
from lessons_lib.measure.cost import LinearCost, fit
from lessons_lib.models.decoder import Decoder
from lessons_lib.models.device import dtype_name
from lessons_lib.progress import bar
from lessons_lib.serving import metrics, peers
from lessons_lib.serving.block_pool import BlockPool
from lessons_lib.serving.engine import Engine, paged
from lessons_lib.serving.loop import Log
from lessons_lib.serving.paged_target import COMPILED, PagedTarget, paged_step
from lessons_lib.serving.scheduler import Continuous, Plan, Scheduler, Static
from lessons_lib.serving.simulator import simulate, steps
from lessons_lib.serving.workload import Fixed, Workload

SLOTS = 16
BLOCKS = dict(num_blocks=256, block_size=32)  # blocks longer than 16 tokens are read faster
COUNT = 48
ENGINE = "our engine, compiled"
TERMS = ("step", "prefill_step", "prefill_token", "prefill_pair", "decode_step", "decode_token", "kv_token")


@cache
def model():
    """smollm2-135m on the device and in the dtype that are fastest here; other benches use the CPU."""
    return load("smollm2-135m")


@cache
def target():
    """The model with a paged cache; its step is compiled before this returns."""
    made = paged(model(), BlockPool(**BLOCKS), SLOTS)
    Engine(made, scheduler()).serve(workload(3, seed=9))
    return made


def scheduler(policy=Continuous) -> Scheduler:
    """A new scheduler with SLOTS slots and BLOCKS blocks."""
    return Scheduler(BlockPool(**BLOCKS), SLOTS, policy())


def workload(count: int, seed: int = 0) -> list[Sequence]:
    """`count` requests that all arrive at once; the same seed gives the same requests."""
    return Workload(count, vocab_size=model().network.config.vocab_size, seed=seed).requests()


def requests(run: Run) -> list[Sequence]:
    """The requests of all claims: COUNT, or SLOTS in a quick run."""
    return workload(SLOTS if run.quick else COUNT)


def serve(asked: list[Sequence], policy=Continuous, padded: bool = False) -> Log:
    """Serve copies of the requests with our engine. padded: finished rows of a static batch are computed."""
    log = Engine(target(), scheduler(policy), padded).serve([request.fresh() for request in asked])
    all_served(log.requests)
    return log


def all_served(served: list[Sequence]) -> None:
    """Raise RuntimeError, naming the first, if a request did not get all its tokens: dropping work is not speed."""
    for request in served:
        if request.error or request.num_output_tokens != request.length:
            raise RuntimeError(
                f"Request {request.id} got {request.num_output_tokens} of {request.length} tokens: {request.error}"
            )


def over_ours(run: Run, theirs: Callable[[list[Sequence]], object], note: str = "") -> Measured:
    """Our output throughput over theirs. Both generate the same tokens, so it is the ratio of times, after warm-up."""
    asked, problem = requests(run), target().problem  # compiled by now
    theirs(workload(3, seed=9))
    how = dict(device=model().device, repeats=1 if run.quick else 3, warmup=0)
    ratio = compare(lambda: theirs(asked), lambda: serve(asked), **how)
    tokens = sum(request.output_length for request in asked)
    facts = {"requests": len(asked), "output_tokens": tokens, "dtype": dtype_name(model().dtype)}
    facts |= {"tokens_per_second": tokens / ratio.b.median, "problem": problem}
    notes = [facts["dtype"], f"{facts['tokens_per_second']:.0f} tokens/s", note, problem]
    return Measured(ratio, "; ".join(filter(None, notes)), facts)


@claim(
    "serving/continuous-vs-static", ">= 1.8",
    f"{ENGINE}, static batches of {SLOTS} that compute finished sequences to the end, as transformers does; the same "
    "requests",
    says="Continuous batching serves the same requests {times} as fast as static batches do",
)  # fmt: skip
def continuous(run: Run) -> Measured:
    asked = requests(run)
    counted = [
        len(simulate(asked, scheduler(policy), LinearCost(step=1)).iterations) for policy in (Static, Continuous)
    ]
    note = f"{counted[0]} static iterations, {counted[1]} continuous"
    found = over_ours(run, lambda asked: serve(asked, Static, padded=True), note)
    packed = timed(lambda: serve(asked, Static), model().device, repeats=1, warmup=0)
    over_packed = packed.median / found.ratio.b.median
    return replace(found, note=f"{found.note}; {over_packed:.2f} over static batches that skip finished sequences")


@claim(
    "serving/vs-sequential", ">= 5", "transformers generate, one request after another, dynamic cache, same dtype",
    says="Our engine serves requests {times} as fast as transformers' generate does one after another",
)  # fmt: skip
def sequential(run: Run) -> Measured:
    return over_ours(run, lambda asked: all_served(peers.padded_batches(model().network, asked, 1)))


@claim(
    "serving/vs-generate-batch", ">= 1.5",
    "transformers' continuous batching, same dtype, pages of 32 tokens, 256 blocks, 256 tokens a batch; timed with its "
    "start-up, which makes its cache, while ours is made before",
    says="Our engine serves requests {times} as fast as transformers' continuous batching",
)  # fmt: skip
def generate_batch(run: Run) -> Measured:
    pages = peers.PAGES if model().device == "cpu" else {}  # on a GPU there is memory for its own default
    return over_ours(run, lambda asked: all_served(peers.continuous_batches(model().network, asked, pages)))


@claim(
    "serving/vs-vllm", ">= 1.0", "vLLM's build for the CPU, same requests, max_num_seqs and dtype, its own process",
    says="Our engine serves requests {times} as fast as vLLM's build for the CPU",
)  # fmt: skip
def over_vllm(run: Run) -> Measured:
    """Our throughput over vLLM's. Raises NotMeasured if VLLM_PYTHON names no environment with vLLM."""
    python, folder = vllm.vllm_python(), Path(model().network.config._name_or_path)
    name = str(model().dtype).removeprefix("torch.")
    with vllm.vllm(python, folder, SLOTS, name) as (theirs, facts):
        found = over_ours(run, theirs)
    notes = ", ".join(f"{package} {version}" for package, version in facts["versions"].items())
    return Measured(found.ratio, f"{found.note}; {notes}", found.facts | {"theirs": facts})


@claim(
    "serving/overhead", "<= 0.08",
    f"a compiled forward pass of {SLOTS} sequences over contiguous buffers, without scheduling or sampling",
    unit="", says="Scheduling, block tables and sampling add {percent} to a compiled forward pass of 16 sequences",
)  # fmt: skip
def overhead(run: Run) -> Measured:
    """Time between the ends of two forward passes of the engine, over a bare forward pass, minus 1.

    The bare pass has as many tokens and cached entries. Each step of the engine is compared with the bare pass just
    before it, since a machine's speed drifts within a second.
    """
    asked = Workload(SLOTS, Fixed(97), Fixed(31), vocab_size=model().network.config.vocab_size).requests()
    bare = contiguous_step(target().decoder, SLOTS, entries=128)  # 4 blocks of 32 in the engine
    bare()
    pairs = [pair for _ in range(1 if run.quick else 15) for pair in run_beside(bare, asked)]
    whole = Ratio.of(*map(Samples, zip(*pairs, strict=True)))
    minus_1 = replace(whole, value=whole.value - 1, low=whole.low - 1, high=whole.high - 1)
    dtype = dtype_name(model().dtype)
    return Measured(minus_1, dtype, {"entries": 128, "dtype": dtype, "problem": target().problem})


def run_beside(bare: Callable, asked: list[Sequence]) -> list[tuple[float, float]]:
    """Run the engine: seconds of each decode step, and of the bare forward pass before it.

    asked: equal requests that fill the slots, so that one step prefills all prompts and the others decode all
    sequences.
    """
    engine = Beside(target(), scheduler(), bare)
    log = engine.serve([request.fresh() for request in asked])
    all_served(log.requests)
    steps = [*zip(log.iterations, engine.took, strict=True)]
    return [(now.end - last.end - took, took) for (last, _), (now, took) in pairwise(steps)]


class Beside(Engine):
    """An engine that runs and times another function before every forward pass. took: its seconds."""

    def __init__(self, target: PagedTarget, scheduler: Scheduler, other: Callable):
        super().__init__(target, scheduler)
        self.other, self.took = other, []

    def run(self, plan: Plan) -> list[list[int]]:
        since = self.now()
        self.other()
        sync(self.target.device)
        self.took.append(self.now() - since)
        return super().run(plan)


class InOnePiece(Pages):
    """Cache with the keys and values of each row in one buffer (rows, H_kv, S, d): no block table."""

    def append(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        rows = torch.arange(len(self.positions), device=keys.device)
        for buffer, new in ((self.keys[layer], keys), (self.values[layer], values)):
            buffer[rows, :, self.positions] = new.transpose(0, 1)
        return self.keys[layer][:, None], self.values[layer][:, None]


def contiguous_step(decoder: Decoder, rows: int, entries: int) -> Callable[[], Tensor]:
    """A compiled forward pass of `rows` tokens, each after 3/4 of `entries` cached ones."""
    c, long = decoder.config, dict(dtype=torch.long, device=model().device)
    step = CompiledStep(paged_step(decoder, InOnePiece), f"{rows}-row contiguous step", decoder, **COMPILED)
    like = dict(dtype=model().dtype, device=model().device)
    made = [torch.zeros(rows, c.num_kv_heads, entries, c.head_dim, **like) for _ in range(2 * c.num_layers)]
    tokens, positions = torch.full((rows,), 50, **long), torch.full((rows,), entries * 3 // 4, **long)
    tables, wanted = torch.zeros(rows, 1, **long), torch.arange(rows, **long)
    return lambda: step(tokens, positions, tables, wanted, made[: c.num_layers], made[c.num_layers :])


@cache
def trace_runs(run: Run) -> list[tuple[Log, Log]]:
    """(engine's log, simulator's log) of the same requests, several times, calibrated before and after each."""
    found, asked = [], requests(run)
    for i in bar(range(1 if run.quick else 5), desc="engine and simulator", unit="run"):
        before = steps(serve(workload(24, seed=100 + 2 * i)))
        log = serve(asked)
        after = steps(serve(workload(24, seed=101 + 2 * i)))
        found.append((log, simulate(asked, scheduler(), fit(before + after, TERMS), padded=False)))
    return found


def simulated_error(run: Run, measure: Callable[[Log], dict[str, float]]) -> Measured:
    """Median over the runs of the worst |simulated / measured - 1| of the log's metrics."""
    pairs = [(measure(real), measure(simulated)) for real, simulated in trace_runs(run)]
    errors = [{name: abs(simulated[name] / real[name] - 1) for name in real} for real, simulated in pairs]
    worst = [max(of.values()) for of in errors]
    each = {name: median(of[name] for of in errors) for name in errors[0]}
    notes = ", ".join(f"{name} {error:.1%}" for name, error in each.items())
    samples = Samples(tuple(worst)), Samples((1.0,) * len(worst))
    return Measured(
        Ratio(median(worst), min(worst), max(worst), *samples, runs=len(worst)),
        f"{notes}; {dtype_name(model().dtype)}",
        {"errors": each, "unit": "relative error", "dtype": dtype_name(model().dtype)},
    )


@claim(
    "simulator/throughput-error", "<= 0.10",
    f"{ENGINE}, the same requests; calibrated on other requests before and after",
    unit="", says="The simulator is {percent} off our engine's throughput",
)  # fmt: skip
def throughput_error(run: Run) -> Measured:
    return simulated_error(run, lambda log: {"output": metrics.latency(log.requests).output_throughput})


@claim(
    "simulator/latency-error", "<= 0.20",
    f"{ENGINE}, the same requests; the worst of TTFT and ITL at p50 and p90; calibrated on other requests before and "
    "after", unit="",
    says="The simulator is {percent} off our engine's TTFT and ITL at p50 and p90, in the worst of the four",
)  # fmt: skip
def latency_error(run: Run) -> Measured:
    def measure(log: Log) -> dict[str, float]:
        found = metrics.latency(log.requests)
        return {f"{name} p{p}": getattr(found, name)[p] for name in ("ttft", "itl") for p in (50, 90)}

    return simulated_error(run, measure)


@claim(
    "simulator/requests-per-second", ">= 170", "872 prompt and 128 output tokens a request, one core", unit="/s",
    dtype="", says="The simulator handles {number} requests per second",
)  # fmt: skip
def requests_per_second(run: Run) -> Measured:
    count, slots = 100 if run.quick else 1000, SLOTS
    asked = Workload(count, Fixed(872), Fixed(128)).requests()
    cost = LinearCost(step=0.01, prefill_token=1e-4, decode_token=1e-3)
    taken = timed(lambda: simulate(asked, Scheduler(BlockPool(4096), slots), cost), repeats=run.repeats, warmup=1)
    return Measured(
        Ratio.of(Samples((float(count),) * run.repeats), taken),
        f"{count} requests, max_num_seqs {slots}",
        {"unit": "requests, s"},
    )
