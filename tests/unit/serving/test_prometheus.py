"""The metrics for Prometheus count what the server served."""

import httpx
import pytest
from support.server import metric, post, serving


def test_metrics_count_what_was_served():
    with serving() as worker:
        body = {"prompt": "abc " * 12, "max_tokens": 9, "temperature": 0}
        for _ in range(2):
            post(worker, body)
        assert metric(worker, "prompt_tokens_total") == metric(worker, "prefix_cache_queries_total") == 96
        assert metric(worker, "generation_tokens_total") == 18
        assert metric(worker, "prefix_cache_hits_total") == 32  # the second prompt's first two blocks
        assert metric(worker, "request_success_total", finished_reason="length", model_name="tiny") == 2
        ttft, itl, e2e, queueing = (
            "time_to_first_token",
            "inter_token_latency",
            "e2e_request_latency",
            "request_queue_time",
        )
        for name, count in ((ttft, 2), (itl, 16), (e2e, 2), (queueing, 2)):
            assert metric(worker, f"{name}_seconds_count") == count
        first, other, whole = (metric(worker, f"{name}_seconds_sum") for name in (ttft, itl, e2e))
        assert first > 0 and other > 0 and first + other == pytest.approx(whole)
        assert metric(worker, "num_requests_running") == metric(worker, "num_requests_waiting") == 0
        assert httpx.get(f"{worker.url}/health", trust_env=False).status_code == 200
