"""Baselines for the engine (lesson 05): the same requests in transformers, with static and continuous batching.

Both return served copies of the requests, so metrics.latency works on them as on those of engine and simulator. Every
output is greedy and has exactly the length given by the workload; EOS tokens do not end it.
"""

from __future__ import annotations

import time

import torch
from transformers import ContinuousBatchingConfig, GenerationConfig

from lessons_lib.decoding.sequence import Sequence, Status
from lessons_lib.measure.clock import TokenClock
from lessons_lib.models.hub import quiet

PAGES = {"page_size": 32, "num_blocks": 256, "max_batch_tokens": 256}  # the fastest for generate_batch on a small CPU
NO_END = -1  # a token id that never occurs


def padded_batches(network, requests: list[Sequence], max_num_seqs: int) -> list[Sequence]:
    """Static batching with transformers' generate: batches of `max_num_seqs` requests, in their given order.

    Prompts are left-padded to a rectangle. Each batch runs to its longest output; the surplus tokens of shorter ones
    are dropped. network: a causal LM of transformers. requests: with ids, all arriving at 0.
    """
    served, start = _fresh(requests), time.perf_counter()
    for first in range(0, len(served), max_num_seqs):
        _pad(network, served[first : first + max_num_seqs], start)
    return served


def _pad(network, batch: list[Sequence], start: float) -> None:
    # left-pad the prompts to a rectangle
    longest, clock = max(request.prompt_length for request in batch), TokenClock()
    ids = torch.tensor([[0] * (longest - r.prompt_length) + r.ids for r in batch], device=network.device)
    mask = torch.tensor([[0] * (longest - r.prompt_length) + [1] * r.prompt_length for r in batch], device=ids.device)
    settings = {"max_new_tokens": max(r.length for r in batch), "do_sample": False, "eos_token_id": NO_END}
    admitted = time.perf_counter() - start
    with quiet():
        out = network.generate(ids, attention_mask=mask, pad_token_id=0, streamer=clock, **settings)
    # each request keeps the tokens of its own length
    times = [at - start for at in clock.times]
    for request, row in zip(batch, out[:, longest:].tolist(), strict=True):
        _note(request, row[: request.length], times[: request.length], admitted, times[-1])


def continuous_batches(network, requests: list[Sequence], pages: dict = PAGES) -> list[Sequence]:
    """Continuous batching in transformers, all requests at once: as generate_batch, with a length for each request.

    network, requests: as in `padded_batches`. pages: arguments of ContinuousBatchingConfig, the sizes of its cache and
    its passes (its defaults take most of the memory). A failed request has an `error`, as in the engine.
    """
    settings = GenerationConfig(do_sample=False, eos_token_id=NO_END, pad_token_id=0)
    config = ContinuousBatchingConfig(**pages)
    served = _fresh(requests)
    with quiet(), network.continuous_batching_context_manager(settings, continuous_batching_config=config) as manager:
        start = time.perf_counter()
        # queue all requests
        names = {manager.add_request(r.ids, max_new_tokens=r.length, record_timestamps=True): r for r in served}
        waiting = set(names)
        # collect results until all are there or the manager has stopped
        while waiting and (manager.is_running() or not manager.output_router.output_queue.empty()):
            result = manager.get_result(timeout=1)
            if result is not None and result.is_finished():
                waiting.discard(result.request_id)
                _take(names[result.request_id], result, start)
    for request in map(names.get, waiting):
        request.status, request.error = Status.CANCELLED, f"Request {request.id}: transformers gave no answer."
    return served


def _fresh(requests: list[Sequence]) -> list[Sequence]:
    """Copies to serve. All must arrive at 0, because these baselines wait for no arrivals."""
    if any(request.arrival for request in requests):
        raise ValueError("These baselines serve all requests at once; let every request arrive at 0 s.")
    return [request.fresh() for request in requests]


def _take(request: Sequence, result, start: float) -> None:
    """Record one result of transformers' manager, which logs errors instead of raising them."""
    times = [at - start for at in result.timestamps or ()]
    if result.error or len(result.generated_tokens) != request.length:
        request.status, request.error = Status.CANCELLED, f"Request {request.id}: {result.error or 'too few tokens'}."
        return
    _note(request, list(result.generated_tokens), times, result.lifespan[0] - start, times[-1])


def _note(request: Sequence, tokens: list[int], times: list[float], admitted: float, finished: float) -> None:
    request.ids, request.num_output_tokens, request.times = request.ids + tokens, len(tokens), times
    request.status, request.admitted, request.finished = Status.FINISHED, admitted, finished
