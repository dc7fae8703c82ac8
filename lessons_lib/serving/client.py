"""A client for OpenAI-compatible servers (lesson 05): replays a workload as streams, and times every token.

    served = replay(workload.requests(), Server("http://127.0.0.1:8000", "my-model"))
    metrics.latency(served)

Works with vLLM, SGLang, TGI and `transformers serve`. A token counts as arrived when its event has been read here:
TTFT holds network, queue and tokenization. One thread per request, so that none waits for another.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from threading import Thread

from .request import Request, State
from .stream import Server, StreamError, Usage, tokens

Prompt = str | list[int]


def replay(
    requests: Sequence[Request],
    server: Server,
    prompt: Callable[[Request], Prompt] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> list[Request]:
    """Send each request at its arrival time -> served copies, with their tokens' times in seconds from the start.

    prompt(request) -> text, or ids where the server takes them; None: the request's ids, ValueError without any. A
    request that fails has an `error` saying why; the others go on. Nothing lasts longer than server.limit after the
    last arrival.
    """
    copies = sorted((request.fresh() for request in requests), key=lambda r: r.arrival)
    prompts = [prompt(request) if prompt else _ids(request) for request in copies]
    start = clock()
    threads = [Thread(target=_ask, args=(r, p, server, start, clock), daemon=True) for r, p in _pairs(copies, prompts)]
    for request, thread in _pairs(copies, threads):
        time.sleep(max(0.0, start + request.arrival - clock()))
        thread.start()
    for request, thread in _pairs(copies, threads):
        thread.join(max(0.0, start + request.arrival + server.limit - clock()))
    return [_outcome(request, server) for request in copies]


def _pairs(requests: Sequence[Request], others: Sequence) -> list[tuple]:
    return list(zip(requests, others, strict=True))


def _ask(request: Request, prompt: Prompt, server: Server, start: float, clock: Callable[[], float]) -> None:
    """Run one request to its end or its error; in a thread of its own."""
    usage = Usage()
    times: list[float] = []
    request.state = State.RUNNING
    try:
        for _ in tokens(server, prompt, request.length, usage):
            times.append(clock() - start)
        if not times:
            raise StreamError("the server sent no token")
    except StreamError as error:
        request.error = f"Request {request.id}: {error} (after {len(times)} tokens)."
    except Exception as error:  # in a thread nobody else would say so
        request.error = f"Request {request.id}: {error!r} (after {len(times)} tokens)."
    request.times = spread(times, usage.tokens)
    request.emitted = len(request.times)
    request.prompt_length = usage.prompt_tokens or request.prompt_length
    request.finished = clock() - start
    request.state = State.CANCELLED if request.error else State.FINISHED


def _outcome(request: Request, server: Server) -> Request:
    """The request as it is now; if its thread is still busy, a copy that the thread cannot change."""
    if request.state in (State.FINISHED, State.CANCELLED):
        return request
    late = request.fresh()
    late.state, late.error = State.CANCELLED, f"Request {request.id}: no end within the limit of {server.limit} s."
    return late


def spread(times: Sequence[float], count: int) -> list[float]:
    """Times of `count` tokens that came in fewer events, evenly: [1, 2], 4 -> [1, 1, 2, 2]; else one per event."""
    if not times or count <= len(times):
        return list(times)
    return [times[-(-(k + 1) * len(times) // count) - 1] for k in range(count)]


def _ids(request: Request) -> list[int]:
    if request.ids is None:
        raise ValueError(f"Request {request.id} has no ids to send; give replay a prompt function.")
    return request.ids
