"""A client for OpenAI-compatible servers (lesson 05): replays a workload as streams, and times every token.

    served = send(workload.requests(), Server("http://127.0.0.1:8000", "my-model"))
    metrics.latency(served)

Works with vLLM, SGLang, TGI and `transformers serve`. A token counts as arrived when its event has been read here:
TTFT holds network, queue and tokenization. One thread per request, so that none waits for another.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from threading import Thread

from lessons_lib.serving.request import Request, State
from lessons_lib.serving.stream import Counted, Server, StreamError, tokens


def send(
    requests: Sequence[Request], server: Server, prompt: Callable[[Request], str | list[int]] | None = None
) -> list[Request]:
    """Send each request at its arrival time -> served copies, with their tokens' times in seconds from the start.

    prompt(request) -> text, or ids where the server takes them; None: the request's ids, ValueError without any. A
    request that fails has an `error` saying why; the others go on. Nothing lasts longer than server.limit after the
    last arrival.
    """
    copies = sorted((request.fresh() for request in requests), key=lambda r: r.arrival)
    asked = [(request, prompt(request) if prompt else _ids(request)) for request in copies]
    start = time.perf_counter()
    threads = [Thread(target=_ask, args=(*both, server, start), daemon=True) for both in asked]
    for request, thread in zip(copies, threads, strict=True):
        time.sleep(max(0.0, start + request.arrival - time.perf_counter()))
        thread.start()
    for request, thread in zip(copies, threads, strict=True):
        thread.join(max(0.0, start + request.arrival + server.limit - time.perf_counter()))
    return [_outcome(request, server) for request in copies]


def _ask(request: Request, prompt: str | list[int], server: Server, start: float) -> None:
    """Run one request to its end or its error; in a thread of its own."""
    counted = Counted()
    times: list[float] = []
    request.state = State.RUNNING
    try:
        for _ in tokens(server, prompt, request.length, counted):
            times.append(time.perf_counter() - start)
        if not times:
            raise StreamError("the server sent no token")
    except Exception as error:  # whatever it is: in a thread nobody else would say so
        why = error if isinstance(error, StreamError) else repr(error)
        request.error = f"Request {request.id}: {why} (after {len(times)} tokens)."
    request.times = evenly(times, counted.tokens)
    request.emitted = len(request.times)
    request.prompt_length = counted.prompt_tokens or request.prompt_length
    request.finished = time.perf_counter() - start
    request.state = State.CANCELLED if request.error else State.FINISHED


def _outcome(request: Request, server: Server) -> Request:
    """The request as it is now; if its thread is still busy, a copy that the thread cannot change."""
    if request.state in (State.FINISHED, State.CANCELLED):
        return request
    late = request.fresh()
    late.state, late.error = State.CANCELLED, f"Request {request.id}: no end within the limit of {server.limit} s."
    return late


def evenly(times: Sequence[float], count: int) -> list[float]:
    """Times of `count` tokens that came in fewer events, evenly: [1, 2], 4 -> [1, 1, 2, 2]; else one per event."""
    if not times or count <= len(times):
        return list(times)
    return [times[-(-(k + 1) * len(times) // count) - 1] for k in range(count)]


def _ids(request: Request) -> list[int]:
    if request.ids is None:
        raise ValueError(f"Request {request.id} has no ids to send; give send a prompt function.")
    return request.ids
