"""The server's metrics for Prometheus (lesson 05), under vLLM's names where they mean the same.

Times are in seconds, in histograms. TTFT and queueing begin at a request's arrival in the server.
"""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from lessons_lib.decoding.sequence import Sequence, Status
from lessons_lib.serving.openai_api import finish_reason
from lessons_lib.serving.scheduler import Plan, Scheduler

SECONDS = [digit * 10.0**power for power in range(-3, 2) for digit in (1, 2.5, 5)] + [100.0]  # buckets


class Metrics:
    """The metrics at /metrics. Gauges are read when it is requested; the rest counts since the server's start."""

    media_type = CONTENT_TYPE_PLAIN_0_0_4

    def __init__(self, scheduler: Scheduler, model: str):
        self.registry, self.model, pool = CollectorRegistry(), model, scheduler.pool
        self._gauge("num_requests_running", "requests that run", lambda: len(scheduler.running))
        self._gauge("num_requests_waiting", "requests that wait", lambda: len(scheduler.waiting))
        used = "fraction of the KV cache blocks in use, from 0 to 1"
        self._gauge("kv_cache_usage_perc", used, lambda: 1 - pool.free_blocks / pool.num_blocks)
        self.preemptions = self._make(Counter, "num_preemptions", "preemptions")
        self.prompt_tokens = self._make(Counter, "prompt_tokens", "prompt tokens of all prefills")
        self.generation_tokens = self._make(Counter, "generation_tokens", "generated tokens")
        self.queries = self._make(Counter, "prefix_cache_queries", "prompt tokens looked for in the prefix cache")
        self.hits = self._make(Counter, "prefix_cache_hits", "prompt tokens found in the prefix cache")
        self.queueing = self._histogram("request_queue_time_seconds", "from arrival to a slot")
        self.ttft = self._histogram("time_to_first_token_seconds", "from arrival to the first token")
        self.itl = self._histogram("inter_token_latency_seconds", "from one token to the next")
        self.e2e = self._histogram("e2e_request_latency_seconds", "from arrival to the last token")
        ended, labels = "requests that ended, by reason: stop, length or abort", ["model_name", "finished_reason"]
        self.ended = Counter("vllm:request_success", ended, labels, registry=self.registry)
        ProcessCollector(registry=self.registry)  # such as process_resident_memory_bytes, on Linux

    def _make(self, kind: Callable, name: str, meaning: str, **rest):
        return kind(f"vllm:{name}", meaning, ["model_name"], registry=self.registry, **rest).labels(self.model)

    def _gauge(self, name: str, meaning: str, value: Callable[[], float]) -> None:
        self._make(Gauge, name, meaning).set_function(value)

    def _histogram(self, name: str, meaning: str):
        return self._make(Histogram, name, meaning, buckets=SECONDS)

    def text(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self.registry)

    def record(self, plan: Plan, committed: list[list[int]]) -> None:
        """Count a step after its commit."""
        self.preemptions.inc(len(plan.preempted))
        for row, tokens in zip(plan.rows, committed, strict=True):
            sequence, times = row.seq, row.seq.times
            if not tokens or sequence.status is Status.CANCELLED:
                continue  # a part of a prompt, or cancelled during the step
            self.generation_tokens.inc(len(tokens))
            if len(times) > 1:
                self.itl.observe(times[-1] - times[-2])
                continue
            self.prompt_tokens.inc(sequence.prompt_length)
            self.queries.inc(sequence.prompt_length)
            self.hits.inc(sequence.reused)
            self.queueing.observe(sequence.admitted - sequence.arrival)
            self.ttft.observe(times[0] - sequence.arrival)

    def record_end(self, sequence: Sequence) -> None:
        """Count a request that has ended."""
        finished = sequence.status is Status.FINISHED
        self.ended.labels(self.model, finish_reason(sequence) if finished else "abort").inc()
        if finished:
            self.e2e.observe(sequence.finished - sequence.arrival)
