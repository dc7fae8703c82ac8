"""Metrics of a run (lesson 05), from its event log: the same for simulator, engine and client.

Per request: TTFT = t_1 - t_0, TPOT = (t_n - t_1)/(n - 1), E2E = t_n - t_0 (measure/timeline.py). Per run:
    makespan = last token - first arrival; output throughput = sum n / makespan; total: sum (P + n) / makespan
    occupancy = rows that emitted a token or fed a prompt / (slots x iterations); the rest of the slots is wasted
Requests that failed or were refused have no times: they count in `failed`, and against goodput.
Source: measure/timeline.py; Little's law.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from lessons_lib.decoding.sequence import Sequence
from lessons_lib.measure import clock
from lessons_lib.measure.clock import Timeline, percentiles
from lessons_lib.serving.loop import Iteration, Log

Percentiles = dict[float, float]


@dataclass(frozen=True)
class Latency:
    """Of all requests that were served: makespan and percentiles {50: ..., 90: ..., 99: ...} in seconds.

    output_throughput, total_throughput: tokens per second, the latter with those of prompts. itl: gaps between tokens,
    those of all requests together; queueing: arrival to first slot, NaN where no log says.
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
    """How the slots and blocks of a run were used.

    occupancy: part of the slots that worked, over iterations, whatever each takes; wasted_slots: the others, counted,
    of which idle_slots were held by finished requests. Over the time of the iterations: kv_blocks, the part of the
    blocks in use; kv_tokens, tokens cached over the room in those blocks (1 less internal fragmentation; above 1 if
    prefixes are shared). reused_tokens: prompt tokens found in the prefix cache.
    """

    iterations: int
    occupancy: float
    wasted_slots: int
    idle_slots: int
    kv_blocks: float
    kv_tokens: float
    preemptions: int
    reused_tokens: int


def latency(requests: list[Sequence], qs: tuple[float, ...] = (50, 90, 99)) -> Latency:
    """The latencies of requests that have been served, in seconds; qs: percentiles.

    NaN where none was served. ValueError for a q outside 0 to 100.
    """
    good = [r for r in requests if served(r)]
    lines = [r.timeline() for r in good]
    span = clock.makespan(lines)
    output = sum(len(line.times) for line in lines)
    queued = [r.admitted - r.arrival if r.admitted is not None else math.nan for r in good]
    return Latency(
        requests=len(requests), failed=len(requests) - len(good), makespan=span,
        output_throughput=output / span, total_throughput=(output + sum(r.prompt_length for r in good)) / span,
        ttft=percentiles([line.ttft for line in lines], qs),
        itl=percentiles([gap for line in lines for gap in line.itl], qs),
        tpot=percentiles([line.tpot for line in lines], qs),
        e2e=percentiles([line.e2e for line in lines], qs),
        queueing=percentiles(queued, qs),
    )  # fmt: skip


def usage(log: Log) -> Usage:
    """How well a run used what it had; zeros and NaN for a run without iterations."""
    steps = log.iterations
    useful, offered = sum(len(i.shares) for i in steps), log.slots * len(steps)
    blocks = over_time(steps, [i.used_blocks for i in steps])
    return Usage(
        iterations=len(steps), occupancy=useful / offered if offered else math.nan, wasted_slots=offered - useful,
        idle_slots=sum(len(i.idle) for i in steps),
        kv_blocks=blocks / log.num_blocks if log.num_blocks else math.nan,
        kv_tokens=over_time(steps, [i.cached_tokens for i in steps]) / (blocks * log.block_size or math.nan),
        preemptions=sum(len(i.preempted) for i in steps), reused_tokens=sum(r.reused for r in log.requests),
    )  # fmt: skip


def served(request: Sequence) -> bool:
    """Whether a request got its tokens: neither refused, nor broken off, nor cancelled."""
    return request.error is None and request.finished is not None and bool(request.times)


def goodput(requests: list[Sequence], ttft: float, tpot: float) -> tuple[float, float]:
    """(requests per second that kept both limits, their fraction); limits in seconds, failures count as misses.

    ZeroDivisionError without requests.
    """
    lines = [r.timeline() if served(r) else Timeline(r.arrival, ()) for r in requests]
    return clock.goodput(lines, ttft, tpot), clock.attainment(lines, ttft, tpot)


def service_level(unloaded: Latency) -> tuple[float, float]:
    """Limits (TTFT, TPOT) in seconds for goodput: 10 and 3 times the medians of requests that were served alone.

    KeyError for latencies without their medians.
    """
    return 10 * unloaded.ttft[50], 3 * unloaded.tpot[50]


def over_time(steps: list[Iteration], values: list[float]) -> float:
    """Mean of one value per iteration, weighted with its duration (idle time between iterations left out).

    NaN without any duration; ValueError for another number of values.
    """
    durations = [i.end - i.start for i in steps]
    total = sum(durations)
    return sum(d * v for d, v in zip(durations, values, strict=True)) / total if total else math.nan
