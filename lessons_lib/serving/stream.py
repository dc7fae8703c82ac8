"""One streamed answer of an OpenAI-compatible server (lesson 05): server-sent events over the standard library.

Source: OpenAI's completions and chat completions; the event stream of the HTML standard.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from urllib.parse import urlsplit


class StreamError(Exception):
    """Why an answer did not come to its end."""


@dataclass(frozen=True)
class Server:
    """Where to ask. chat: the chat endpoint, which needs text and adds the model's template; else completions.

    extra: more fields of the request's body, such as {"ignore_eos": True} for vLLM and SGLang, so that outputs have
    the length that the workload says. timeout: seconds without a byte before a request is given up; limit: seconds
    for a whole request. ValueError for an address or a key that cannot be sent to.
    """

    url: str
    model: str
    chat: bool = False
    extra: dict = field(default_factory=lambda: {"temperature": 0})
    api_key: str | None = None
    timeout: float = 60.0
    limit: float = 600.0

    def __post_init__(self) -> None:
        if not _reachable(self.url):
            raise ValueError(f"A server's address looks like http://127.0.0.1:8000, not {self.url!r}.")
        if self.api_key and not (self.api_key.isascii() and self.api_key.isprintable()):
            raise ValueError("An api_key is one line of ASCII characters; this one has others, perhaps a line's end.")

    def connect(self) -> HTTPConnection:
        """A connection, not yet used."""
        parts = urlsplit(self.url)
        kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        return kind(parts.hostname, parts.port, timeout=self.timeout)

    def body(self, prompt: str | list[int], max_tokens: int) -> dict:
        """What to post for one streamed answer."""
        asked = {"messages": [{"role": "user", "content": prompt}]} if self.chat else {"prompt": prompt}
        stream = {"stream": True, "stream_options": {"include_usage": True}}
        return {"model": self.model, "max_tokens": max_tokens, **asked, **stream, **self.extra}


@dataclass
class Counted:
    """What the server counted; 0 if it did not say."""

    prompt_tokens: int = 0
    tokens: int = 0


def tokens(server: Server, prompt: str | list[int], max_tokens: int, counted: Counted) -> Iterator[str]:
    """Ask, and yield the text of each event as it comes, filling in `counted`. StreamError if the end never comes."""
    try:
        with closing(server.connect()) as connection:
            yield from _texts(_post(connection, server, server.body(prompt, max_tokens)), counted)
    except TimeoutError:
        raise StreamError(f"nothing came from {server.url} for {server.timeout} s") from None
    except ConnectionRefusedError:
        raise StreamError(f"{server.url} refused the connection; is the server running?") from None
    except (OSError, HTTPException) as error:
        raise StreamError(f"the connection to {server.url} broke off: {error!r}") from None


def _reachable(url: str) -> bool:
    """Whether a url has all that a connection needs."""
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is none, half an IPv6 address
        return False


def _post(connection: HTTPConnection, server: Server, body: dict) -> HTTPResponse:
    path = urlsplit(server.url).path.rstrip("/").removesuffix("/v1")
    headers = {"Content-Type": "application/json", "Accept": "text/event-stream"}
    if server.api_key:
        headers["Authorization"] = f"Bearer {server.api_key}"
    endpoint = "/v1/chat/completions" if server.chat else "/v1/completions"
    connection.request("POST", path + endpoint, json.dumps(body), headers)
    response = connection.getresponse()
    if response.status != 200:
        said = " ".join(response.read(1000).decode(errors="replace").split())
        raise StreamError(f"the server answered {response.status}: {said[:400]}")
    return response


def _texts(response: HTTPResponse, counted: Counted) -> Iterator[str]:
    """The texts of the events up to [DONE]; a stream that just ends is complete only if it gave a finish reason."""
    finished = False
    for line in response:
        if not line.startswith(b"data:"):
            continue  # comments and empty lines
        data = line[5:].strip()
        if data == b"[DONE]":
            return
        text, ended = _event(data, counted)
        finished |= ended
        if text:
            yield text
    if not finished:
        raise StreamError("the server closed the connection before the end")


def _event(data: bytes, counted: Counted) -> tuple[str, bool]:
    """(new text, whether it is the last) of one event."""
    try:
        event = json.loads(data)
        if event.get("error"):
            raise StreamError(f"the server reports: {event['error']}")
        usage = event.get("usage") or {}
        counted.prompt_tokens = int(usage.get("prompt_tokens") or counted.prompt_tokens)
        counted.tokens = int(usage.get("completion_tokens") or counted.tokens)
        choice = (event.get("choices") or [{}])[0]
        text = choice.get("text") or (choice.get("delta") or {}).get("content") or ""
        return text, choice.get("finish_reason") is not None
    except (ValueError, AttributeError, TypeError, KeyError):
        raise StreamError(f"no event of a completion: {data[:80]!r}") from None
