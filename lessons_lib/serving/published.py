"""Anyscale's continuous-batching study (2023), simulated (lesson 05): OPT-13B in fp16 on one A100-40GB.

Its workload: 1,000 requests at once with 512 prompt tokens each. Output lengths are exponential with scale 128, and
sampled again above M. Throughput counts prompt and output tokens. The study's tables are images, so only the values in
its text can be quoted, all for M = 1536. Nothing is tuned here: the cost model is the roofline of the data sheet,
without overhead. The error shows what roofline and scheduling do not explain.
Source: anyscale.com/blog/continuous-batching-llm-inference; settings from its public benchmark scripts.
"""

from __future__ import annotations

from dataclasses import dataclass

from lessons_lib.decoding.sequence import Sequence
from lessons_lib.measure.config import CONFIGS, DATA_SHEETS
from lessons_lib.measure.cost import RooflineCost
from lessons_lib.serving.block_pool import BlockPool
from lessons_lib.serving.loop import Log
from lessons_lib.serving.scheduler import Scheduler, Static
from lessons_lib.serving.simulator import simulate
from lessons_lib.serving.workload import Exponential, Fixed, Workload

MEAN_OUTPUT = 128  # tokens, before lengths above M are sampled again
STATIC_MAX_NUM_SEQS = {32: 16, 128: 12, 512: 8, 1536: 4}  # by M, so that 512 + M tokens per request make BATCH_TOKENS
BATCH_TOKENS = {32: 8700, 128: 7500, 512: 8100, 1536: 8100}
CACHE_TOKENS = 17_089  # 14 GB beside the weights / 819,200 bytes per token of OPT-13B
MANY = 256  # max_num_seqs: more than ever run at once; also vLLM's default
NAIVE, BATCH_MAX, SAME_SLOTS, RESERVED, WHOLE_MEMORY, PAGED = (
    "static, every batch as long as the job's longest",  # Hugging Face pipelines as the study ran them
    "static, each batch to its own longest",  # FasterTransformer
    "continuous, as many slots as static",  # no system of the study: iteration-level scheduling alone
    "continuous, whole length reserved",  # TGI, Ray Serve: the room that the static batches had
    "the same in all of the memory",  # no system of the study: paging's room without paging
    "continuous, paged",  # vLLM
)
TOKENS_PER_SECOND = {NAIVE: 81, BATCH_MAX: 4 * 81, RESERVED: 8 * 81, PAGED: 23 * 81}  # at M = 1536


@dataclass(frozen=True)
class StudyRow:
    """One system at one M. simulated, published: throughput in tokens/s with prompt tokens; None if not published.

    gain: simulated throughput over that of naive static batching at this M; published_gain: the same from published
    values. concurrency: mean requests per forward pass.
    """

    longest: int
    system: str
    simulated: float
    gain: float
    concurrency: float
    published: float | None = None
    published_gain: float | None = None


def workload(longest: int, requests: int = 1000, seed: int = 0) -> list[Sequence]:
    """The study's requests, with outputs of at most `longest` (M) tokens."""
    return Workload(requests, Fixed(512), Exponential(MEAN_OUTPUT, longest, reject=True), seed=seed).requests()


def systems(longest: int, requests: list[Sequence]) -> dict[str, Scheduler]:
    """A new scheduler for each system at this M, one of STATIC_MAX_NUM_SEQS."""
    max_num_seqs, budget = STATIC_MAX_NUM_SEQS[longest], BlockPool(BATCH_TOKENS[longest], 1)
    job = max(request.output_length for request in requests)
    paged = BlockPool(CACHE_TOKENS // 16, 16)
    unlimited = lambda: BlockPool(10**9, 1)  # noqa: E731 - static systems fit by max_num_seqs
    return {
        NAIVE: Scheduler(unlimited(), max_num_seqs, Static(steps=job)),
        BATCH_MAX: Scheduler(unlimited(), max_num_seqs, Static()),
        SAME_SLOTS: Scheduler(unlimited(), max_num_seqs, mixed=False),
        RESERVED: Scheduler(budget, MANY, mixed=False, reserve="max", watermark=0),
        WHOLE_MEMORY: Scheduler(BlockPool(CACHE_TOKENS, 1), MANY, mixed=False, reserve="max", watermark=0),
        PAGED: Scheduler(paged, MANY, mixed=False, max_num_batched_tokens=BATCH_TOKENS[longest]),
    }


def device() -> RooflineCost:
    """Roofline of OPT-13B on an A100-40GB."""
    sheet = DATA_SHEETS["A100-40GB"]
    return RooflineCost(CONFIGS["opt-13b"], sheet.bf16_flops, sheet.bandwidth)


def table(requests: int = 1000, seed: int = 0) -> list[StudyRow]:
    """Simulated and published throughput of every system at every M."""
    return [row for longest in STATIC_MAX_NUM_SEQS for row in _rows(longest, requests, seed)]


def _rows(longest: int, requests: int, seed: int) -> list[StudyRow]:
    # simulate all systems on the same requests
    made = workload(longest, requests, seed)
    logs = {name: simulate(made, scheduler, device()) for name, scheduler in systems(longest, made).items()}
    speeds = {name: total_throughput(log) for name, log in logs.items()}
    # compare with naive static batching and with the published values
    naive = speeds[NAIVE]
    rows = []
    for name, log in logs.items():
        known = TOKENS_PER_SECOND.get(name) if longest == 1536 else None
        mean = sum(len(i.shares) for i in log.iterations) / len(log.iterations)
        ratio = known and known / TOKENS_PER_SECOND[NAIVE]
        rows.append(StudyRow(longest, name, speeds[name], speeds[name] / naive, mean, known, ratio))
    return rows


def total_throughput(log: Log) -> float:
    """Prompt and output tokens per second, from the first arrival until the last sequence leaves its slot.

    The steps of a static batch after its last useful token count, too. log: of a run in which every request was served.
    """
    tokens = sum(r.prompt_length + r.num_output_tokens for r in log.requests)
    return tokens / (max(r.finished for r in log.requests) - min(r.arrival for r in log.requests))
