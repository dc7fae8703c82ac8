"""A streaming client for OpenAI-compatible servers (lesson 05): sends a workload and times every token.

    served = send(workload.requests(), Server("http://127.0.0.1:8000", "my-model"))
    metrics.latency(served)

Works with `lessons serve`, vLLM, SGLang, TGI and `transformers serve`, through the openai package. Each request is sent
at its arrival time, no matter how many are still unanswered (open loop), up to 1,000 at once, and without retries. The
time of a token is when the client has read its event; a last token without text, such as an end token, has that of the
event with the finish_reason. TTFT includes connecting (each request opens a connection), network, queue and
tokenization. One core reads all events, which limits the client to a few thousand tokens per second.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from lessons_lib.decoding.sequence import Sequence, Status

try:
    import openai
    from anyio.from_thread import start_blocking_portal
except ModuleNotFoundError:  # engine and server work without it
    openai = None

Prompt = str | list[int]
WARM_UP = 3.0  # maximum seconds for the client's first call, before any request is sent


@dataclass(frozen=True)
class Server:
    """Address and settings of a server.

    chat: use the chat endpoint, which takes text and applies the model's chat template; else the completions endpoint.
    extra: more fields of the request body, for example {"ignore_eos": True} for vLLM and SGLang, which makes outputs as
    long as in the workload. timeout: maximum seconds between two events.
    """

    url: str
    model: str
    chat: bool = False
    extra: dict = field(default_factory=lambda: {"temperature": 0})
    api_key: str | None = None
    timeout: float = 60.0

    def __post_init__(self) -> None:
        if openai is None:
            raise ModuleNotFoundError('The client needs the openai package: pip install ".[lessons]"')
        if not _reachable(self.url):
            raise ValueError(f"A server's address looks like http://127.0.0.1:8000, not {self.url!r}.")
        if self.api_key and not (self.api_key.isascii() and self.api_key.isprintable()):
            raise ValueError("An api_key is one line of ASCII characters; this one has others, perhaps a line's end.")

    def client(self) -> openai.AsyncOpenAI:
        """A client without retries, which would hide failures, and without its own time limits.

        Connections are not reused, because a request fails if the server is just closing its connection. Proxies from
        the environment are ignored, because they would add to TTFT. The API key, organization and project from the
        environment are not sent, because they are meant for another server.
        """
        address = self.url.rstrip("/").removesuffix("/v1") + "/v1"
        http = openai.DefaultAsyncHttpxClient(trust_env=False)
        client = openai.AsyncOpenAI(
            base_url=address, api_key=self.api_key or "none", max_retries=0, timeout=None, http_client=http,
            default_headers={"Connection": "close"},
        )  # fmt: skip
        client.organization = client.project = None  # as None arguments they would be read from the environment
        return client


class StreamError(Exception):
    """A stream that failed or ended too early, with the reason."""


def send(
    requests: list[Sequence], server: Server, prompt: Callable[[Sequence], Prompt] | None = None
) -> list[Sequence]:
    """Send each request at its arrival time -> copies of the requests, with token times in seconds from the start.

    prompt(request) -> text, or ids if the server accepts them; None: the request's ids. A failed request has an
    `error`, and the others continue. The clock starts after a warm-up call that lists the server's models (at most
    WARM_UP seconds).
    """
    copies = sorted((request.fresh() for request in requests), key=lambda r: r.arrival)
    asked = [(request, prompt(request) if prompt else _ids(request)) for request in copies]
    with start_blocking_portal() as portal:  # an event loop in another thread: a notebook's own is running this cell
        portal.call(_replay, asked, server)
    return copies


async def _replay(asked: list[tuple[Sequence, Prompt]], server: Server) -> None:
    async with server.client() as client:
        with suppress(Exception):  # warm-up: the first call takes longer. If it fails, each request reports the error
            await asyncio.wait_for(client.models.list(), min(WARM_UP, server.timeout))
        start = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for request, prompt in asked:
                group.create_task(_ask(client, server, request, prompt, start))


async def _ask(client: openai.AsyncOpenAI, server: Server, request: Sequence, prompt: Prompt, start: float) -> None:
    """Wait for the request's arrival time, then run it until it ends or fails."""
    await asyncio.sleep(start + request.arrival - time.perf_counter())
    request.status, error = Status.RUNNING, None
    try:
        await _read(client, server, request, prompt, start)
    except Exception as why:  # any error: the other requests continue
        error = str(why) or repr(why)
    request.finished = time.perf_counter() - start
    request.status = Status.CANCELLED if error else Status.FINISHED
    request.error = f"Request {request.id}: {error} (after {request.num_output_tokens} tokens)." if error else None


async def _read(client: openai.AsyncOpenAI, server: Server, request: Sequence, prompt: Prompt, start: float) -> None:
    """Send the request and record when each token arrives. StreamError if the stream does not end regularly."""
    times: list[float] = []
    tokens, finished, stream = 0, None, None
    try:
        async with asyncio.timeout(server.timeout) as silence:
            # the timeout restarts at every event
            stream = await _stream(client, server, prompt, request.length)
            async for event in stream:
                silence.reschedule(asyncio.get_running_loop().time() + server.timeout)
                # record the time of each generated token, and of the end
                now = time.perf_counter() - start
                for choice in event.choices or []:
                    if _generated(choice):
                        times.append(now)
                    if choice.finish_reason:
                        finished = now
                # exact token counts, sent with the last event
                if event.usage:
                    tokens = event.usage.completion_tokens or tokens
                    if request.ids is None:  # the server's count; that of ids is known
                        request.prompt_length = event.usage.prompt_tokens or request.prompt_length
    except Exception as error:
        raise StreamError(_why(error, server, begun=stream is not None)) from error
    finally:
        # keep the tokens so far, also after an error
        request.times = evenly(times, tokens)
        if finished is not None and tokens > len(times):  # the last token had no text, such as an end token
            request.times = [*evenly(times or [finished], tokens)[:-1], finished]
        request.num_output_tokens = len(request.times)
        if stream is not None:
            with suppress(Exception):  # the stream has been read, or the relevant error has been raised already
                await stream.close()
    if finished is None:
        raise StreamError("the stream ended without a finish_reason; the server cut it off")
    if not request.times:
        raise StreamError("the server sent no token")


def _why(error: Exception, server: Server, begun: bool) -> str:
    """An error message for an exception. begun: whether the stream had already begun."""
    cause = repr(error.__cause__ or error)
    match error:
        case TimeoutError():
            return f"no event came from {server.url} for {server.timeout} s"
        case openai.APIStatusError():
            return f"the server answered {error.status_code}: {' '.join(error.response.text.split())[:400]}"
        case openai.APIConnectionError():
            return f"the answer broke off: {cause}" if begun else f"cannot reach {server.url}; is it running? {cause}"
        case openai.APIError():
            return f"the server reports: {error.message}"
        case json.JSONDecodeError():
            return f"no event of a completion: {error.doc[:80]!r}"
    return f"the answer broke off: {cause}" if begun else repr(error)


async def _stream(client: openai.AsyncOpenAI, server: Server, prompt: Prompt, max_tokens: int) -> openai.AsyncStream:
    rest = dict(
        model=server.model, max_tokens=max_tokens, stream=True, stream_options={"include_usage": True},
        extra_body=server.extra,
    )  # fmt: skip
    if server.chat:
        return await client.chat.completions.create(messages=[{"role": "user", "content": prompt}], **rest)
    return await client.completions.create(prompt=prompt, **rest)


def _generated(choice) -> bool:
    """Whether an event contains generated tokens: text, reasoning or a tool call, not only a role.

    Servers use different names for the reasoning field, so any field of a chat delta counts.
    """
    if not hasattr(choice, "delta"):
        return bool(choice.text)
    return any(value for name, value in choice.delta or () if name != "role")


def evenly(times: list[float], count: int) -> list[float]:
    """Times of `count` tokens, spread evenly over fewer events: [1, 2], 4 -> [1, 1, 2, 2].

    Of more events, the last ones bring text that was held back, as before a stop text. Without a count: one per event.
    """
    if not times or not count:
        return list(times)
    if count <= len(times):
        return times[:count]
    return [times[-(-(k + 1) * len(times) // count) - 1] for k in range(count)]


def _reachable(url: str) -> bool:
    """Whether a url has a scheme, a host and a valid port."""
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # an invalid port or IPv6 address
        return False


def _ids(request: Sequence) -> list[int]:
    if request.ids is None:
        raise ValueError(f"Request {request.id} has no ids to send; give send a prompt function.")
    return request.ids
