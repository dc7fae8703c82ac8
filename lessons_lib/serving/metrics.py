"""Serving metrics of a run (lesson 05), computed in the same way for simulator, engine and client.

Per request: TTFT = t_1 - t_0, TPOT = (t_n - t_1)/(n - 1), E2E = t_n - t_0 (measure/clock.py: Timeline). Per run:
    makespan = last token - first arrival; output throughput = sum n / makespan; total: sum (P + n) / makespan
Failed and rejected requests have no times: they count in `failed` and as misses in goodput.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from lessons_lib.decoding.sequence import Sequence
from lessons_lib.measure import clock
from lessons_lib.measure.clock import Timeline, percentiles
from lessons_lib.serving.loop import Log

Percentiles = dict[float, float]


@dataclass(frozen=True)
class Latency:
    """Latency of the served requests: makespan in seconds, and percentiles {50: ..., 90: ..., 99: ...} in seconds.

    requests, failed: counts. output_throughput, total_throughput: tokens per second without and with prompt tokens.
    itl: gaps between tokens, over all requests. queueing: from arrival to first slot, NaN if unknown.
    """

    requests: int
    failed: int
    makespan: float
    output_throughput: float
    total_throughput: float
    ttft: Percentiles
    itl: Percentiles
    tpot: Percentiles
    e2e: Percentiles
    queueing: Percentiles


@dataclass(frozen=True)
class Usage:
    """Utilisation of a run's KV cache blocks.

    kv_tokens: cached tokens over the capacity of the blocks in use (1 minus internal fragmentation; above 1 if prefixes
    are shared), from means over time. reused_tokens: prompt tokens found in the prefix cache, without what a preempted
    request finds again.
    """

    kv_tokens: float
    preemptions: int
    reused_tokens: int


def latency(requests: list[Sequence]) -> Latency:
    """Latency of requests after a run, in seconds. NaN if none was served; throughput also NaN if no time passed."""
    good = [r for r in requests if served(r)]
    lines = [r.timeline() for r in good]
    span = clock.makespan(lines)
    seconds = span or math.nan
    output = sum(len(line.times) for line in lines)
    queued = [r.admitted - r.arrival if r.admitted is not None else math.nan for r in good]
    return Latency(
        requests=len(requests), failed=len(requests) - len(good), makespan=span,
        output_throughput=output / seconds, total_throughput=(output + sum(r.prompt_length for r in good)) / seconds,
        ttft=percentiles([line.ttft for line in lines]),
        itl=percentiles([gap for line in lines for gap in line.itl]),
        tpot=percentiles([line.tpot for line in lines]),
        e2e=percentiles([line.e2e for line in lines]),
        queueing=percentiles(queued),
    )  # fmt: skip


def usage(log: Log) -> Usage:
    """Utilisation of a run's blocks. kv_tokens is NaN if no time passed."""
    steps = log.iterations
    room = sum((i.end - i.start) * i.used_blocks for i in steps) * log.block_size
    return Usage(
        kv_tokens=sum((i.end - i.start) * i.cached_tokens for i in steps) / (room or math.nan),
        preemptions=sum(len(i.preempted) for i in steps),
        reused_tokens=sum(r.reused for r in log.requests),
    )


def served(request: Sequence) -> bool:
    """Whether a request got all its tokens: it was not rejected, did not fail and was not cancelled."""
    return request.error is None and request.finished is not None and bool(request.times)


def goodput(requests: list[Sequence], ttft: float, tpot: float) -> tuple[float, float]:
    """Goodput -> (requests per second within both limits, fraction of requests within both limits).

    ttft, tpot: limits in seconds. Failed requests count as misses. A single token has no TPOT and is judged by its TTFT
    alone. NaN without requests, or if no time passed.
    """
    lines = [r.timeline() if served(r) else Timeline(r.arrival, ()) for r in requests]
    in_time = sum(line.ttft <= ttft and not line.tpot > tpot for line in lines)  # without a TTFT or TPOT it is NaN
    return in_time / (clock.makespan(lines) or math.nan), in_time / (len(lines) or math.nan)


def service_level(unloaded: Latency) -> tuple[float, float]:
    """Limits (TTFT, TPOT) in seconds for goodput: 10 and 3 times the medians of requests that were served alone."""
    return 10 * unloaded.ttft[50], 3 * unloaded.tpot[50]
