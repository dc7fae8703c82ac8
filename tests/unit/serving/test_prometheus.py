"""The metrics for Prometheus count what the server served."""

import httpx
import pytest
from support.server import metric, post, serving
from support.serving import PREFIX, TARGET

from lessons_lib.serving.block_pool import BlockPool
from lessons_lib.serving.engine import Engine
from lessons_lib.serving.prometheus import Metrics
from lessons_lib.serving.scheduler import Scheduler


def test_metrics_count_what_was_served():
    with serving() as worker:
        body = {"prompt": "abc " * 12, "max_tokens": 9, "temperature": 0}
        for _ in range(2):
            post(worker, body)
        assert metric(worker, "prompt_tokens_total") == metric(worker, "prefix_cache_queries_total") == 96
        assert metric(worker, "generation_tokens_total") == 18
        assert metric(worker, "prefix_cache_hits_total") == 32  # the second prompt's first two blocks
        assert metric(worker, "request_success_total", finished_reason="length", model_name="tiny") == 2
        ttft, itl, e2e = "time_to_first_token", "inter_token_latency", "e2e_request_latency"
        for name, count in ((ttft, 2), (itl, 16), (e2e, 2), ("request_queue_time", 2)):
            assert metric(worker, f"{name}_seconds_count") == count
        first, other, whole = (metric(worker, f"{name}_seconds_sum") for name in (ttft, itl, e2e))
        assert first > 0 and other > 0 and first + other == pytest.approx(whole)
        assert metric(worker, "num_requests_running") == metric(worker, "num_requests_waiting") == 0
        assert httpx.get(f"{worker.url}/health", trust_env=False).status_code == 200


def counted(engine, requests, metrics):
    """Serve requests step by step -> the metrics' values by name."""
    scheduler = engine.scheduler
    with scheduler.exclusive():
        for request in requests:
            scheduler.add(request)
        while scheduler.unfinished:
            plan, committed = scheduler.schedule(engine.now()), []
            if plan:
                committed = engine.run(plan)
                scheduler.commit(plan, committed, engine.now())
            metrics.record(plan, committed)
    lines = [line.split("{")[0] + " " + line.split()[-1] for line in metrics.text().decode().splitlines()]
    return {name: float(value) for name, value in (line.split() for line in lines if line.startswith("vllm:"))}


def test_a_request_cancelled_in_its_second_step_is_counted_once():
    engine = Engine(TARGET, Scheduler(BlockPool(80, 4)))
    seen = []
    request = engine.request(PREFIX, max_new_tokens=9, on_tokens=lambda new: cancel(seen, new))

    def cancel(seen, new):
        seen.append(new)
        if len(seen) == 2:
            engine.cancel(request)

    found = counted(engine, [request], Metrics(engine.scheduler, "tiny"))
    assert found["vllm:prompt_tokens_total"] == found["vllm:prefix_cache_queries_total"] == len(PREFIX)
    assert found["vllm:time_to_first_token_seconds_count"] == found["vllm:request_queue_time_seconds_count"] == 1


def test_what_a_preempted_prompt_finds_of_its_own_blocks_is_no_hit():
    pool = BlockPool(12, 4)
    engine = Engine(TARGET, Scheduler(pool, 4, max_num_batched_tokens=4, enable_chunked_prefill=True, watermark=0))
    prompt = [7 * i % 90 for i in range(32)]
    metrics = Metrics(engine.scheduler, "tiny")
    counted(engine, [engine.request(prompt[:24], max_new_tokens=1)], metrics)  # fills the prefix cache
    growing = [engine.request(list(ids), max_new_tokens=12) for ids in (range(50, 54), range(60, 65))]
    preempted = engine.request(prompt, max_new_tokens=12)
    found = counted(engine, [*growing, preempted], metrics)
    assert preempted.preemptions
    assert found["vllm:prefix_cache_queries_total"] == 24 + 4 + 5 + 32 and found["vllm:prefix_cache_hits_total"] == 24
