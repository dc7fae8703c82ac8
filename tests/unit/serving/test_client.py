"""The client against a small server on loopback that behaves, and misbehaves, as it is told."""

import json
import re
import socket
import struct
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from lessons_lib.serving.client import evenly, send
from lessons_lib.serving.metrics import latency
from lessons_lib.serving.request import Request, State
from lessons_lib.serving.stream import Counted, Server, tokens

GAP = 0.01
RELEASE = threading.Event()
REFUSED = {"refuse": (422, "too long"), "fail": (500, "out of order")}


class Fake(BaseHTTPRequestHandler):
    """Answers as many events as asked; what goes wrong is the first word of the prompt."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append((self.path, dict(self.headers), asked))
        prompt = asked.get("prompt") or asked["messages"][0]["content"]
        self.how = prompt.split()[0] if isinstance(prompt, str) else "well"
        if self.how in REFUSED:
            return self.send_error(*REFUSED[self.how])
        self.close_connection = True
        self.send_response(200)
        self.chunked = self.how != "plain-cut"
        if self.chunked:
            self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.answer(asked["max_tokens"], chat="messages" in asked)

    def answer(self, count, chat):
        self.write(b": a comment\n\n")
        if chat:
            self.event({"choices": [{"delta": {"role": "assistant"}, "finish_reason": None}]})
        for i in range(count):
            if i == 2 and self.misbehave():
                return
            said = {"delta": {"content": "a"}} if chat else {"text": "a"}
            self.event({"choices": [{**said, "finish_reason": None}]})
            time.sleep(GAP)
        self.event({"choices": [{"text": "", "delta": {}, "finish_reason": "length"}]})
        if self.how != "silent":
            counts = {"prompt_tokens": 7, "completion_tokens": count * self.server.burst}
            unsaid = dict.fromkeys(counts)
            self.event({"choices": [], "usage": unsaid if self.how == "null" else counts})
            self.write(b"data: [DONE]\n\n")
        self.write(b"")

    def misbehave(self):
        if self.how in ("hang", "gate"):
            RELEASE.wait(20)
        if self.how == "trickle":
            while not RELEASE.wait(0.02):
                self.write(b": still there\n\n")
        if self.how == "reset":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
        if self.how == "garbage":
            self.write(b"data: {oops\n\n")
        if self.how == "report":
            self.event({"error": {"message": "out of memory"}})
        return self.how in ("drop", "plain-cut", "reset", "hang", "trickle", "garbage", "report")

    def event(self, content):
        self.write(b"data: " + json.dumps(content).encode() + b"\n\n")

    def write(self, data):
        try:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data) if self.chunked else data)
            self.wfile.flush()
        except OSError:
            pass  # the client has gone

    def log_message(self, *args):
        pass


@pytest.fixture
def fake():
    RELEASE.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Fake)
    server.daemon_threads, server.asked, server.burst = True, [], 1
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    server.url = f"http://127.0.0.1:{server.server_port}"
    yield server
    RELEASE.set()
    server.shutdown()
    server.server_close()


def ask(fake, *words, count=4, **settings):
    made = [Request(i, 0.0, 1, count) for i in range(len(words))]
    return send(made, Server(fake.url, "m", **settings), prompt=lambda r: words[r.id])


def test_every_token_is_timed_and_the_metrics_are_those_of_the_engine(fake):
    first, second = ask(fake, "well", "well", count=5)
    for request in (first, second):
        assert request.state is State.FINISHED and request.error is None
        assert request.emitted == len(request.times) == 5 and request.prompt_length == 7
        assert 0 < request.times[0] and request.times == sorted(request.times)
        assert request.times[-1] <= request.finished
    seen = latency([first, second])
    assert seen.failed == 0 and seen.output_throughput == 10 / seen.makespan


def test_a_token_is_read_before_the_next_one_is_sent(fake):
    stream = tokens(Server(fake.url, "m"), "gate", 4, Counted())
    assert [next(stream), next(stream)] == ["a", "a"]  # the server goes on only when these are here
    RELEASE.set()
    assert list(stream) == ["a", "a"]


def test_what_is_asked(fake):
    made = [Request(0, 0, output_length=9, max_tokens=3, ids=[5, 6, 7])]
    send(made, Server(fake.url + "/v1/", "m", api_key="k", extra={"ignore_eos": True}))
    path, headers, body = fake.asked[0]
    assert path == "/v1/completions" and headers["Authorization"] == "Bearer k"
    assert headers["Accept"] == "text/event-stream" and headers["Content-Type"] == "application/json"
    assert body.pop("stream_options") == {"include_usage": True}
    assert body == {"model": "m", "prompt": [5, 6, 7], "max_tokens": 3, "stream": True, "ignore_eos": True}
    assert made[0].state is State.WAITING  # the workload itself stays as it was


def test_the_chat_endpoint_gets_messages_and_its_role_event_is_no_token(fake):
    (request,) = ask(fake, "well spoken", count=3, chat=True)
    assert fake.asked[0][0] == "/v1/chat/completions"
    assert fake.asked[0][2]["messages"] == [{"role": "user", "content": "well spoken"}]
    assert len(request.times) == 3 and request.error is None


def test_requests_are_sent_when_they_arrive(fake):
    made = [Request(0, 0.3, 1, 1), Request(1, 0.0, 1, 1)]
    served = send(made, Server(fake.url, "m"), prompt=lambda r: "well")
    assert [request.id for request in served] == [1, 0]
    assert served[1].times[0] >= 0.3 and served[1].timeline().ttft >= 0


@pytest.mark.parametrize("how", ["drop", "plain-cut"])
def test_a_dropped_connection_is_one_clear_error_and_the_others_go_on(fake, how):
    served = ask(fake, "well", how, "well")
    assert [request.state for request in served] == [State.FINISHED, State.CANCELLED, State.FINISHED]
    assert "Request 1: the" in served[1].error and "(after 2 tokens)" in served[1].error
    assert "closed the connection" in served[1].error or "broke off" in served[1].error
    assert latency(served).failed == 1 and latency(served).output_throughput == 8 / latency(served).makespan


@pytest.mark.parametrize(
    "how, message",
    [
        ("reset", "the connection to http.* broke off: ConnectionResetError"),
        ("garbage", "no event of a completion: b'{oops'"),
        ("report", "the server reports: .*out of memory"),
        ("refuse", "the server answered 422: .*too long"),
        ("fail", "the server answered 500: .*out of order"),
    ],
)
def test_a_server_that_misbehaves_gives_an_error_and_the_others_go_on(fake, how, message):
    well, bad = ask(fake, "well", how)
    assert well.error is None and re.search(message, bad.error)


def test_a_server_that_never_ends_gives_an_error_and_no_hang(fake):
    (silent,) = ask(fake, "hang", timeout=0.3)
    (talking,) = ask(fake, "trickle", limit=1.0)
    assert re.search("nothing came from http.* for 0.3 s", silent.error)
    assert "no end within the limit of 1.0 s" in talking.error


def test_a_finish_reason_is_an_end_even_without_done(fake):
    (request,) = ask(fake, "silent")
    assert request.error is None and request.prompt_length == 1 and len(request.times) == 4


def test_counts_that_are_null_are_counts_that_nobody_said(fake):
    (request,) = ask(fake, "null")
    assert request.error is None and request.prompt_length == 1 and len(request.times) == 4


@pytest.mark.parametrize("settings, message", [
    (dict(extra={"seed": object()}), r"TypeError.*not JSON serializable.* \(after 0 tokens\)"),
    (dict(path="/é"), "UnicodeEncodeError"),
], ids=["body", "path"])  # fmt: skip
def test_whatever_goes_wrong_in_a_thread_is_its_requests_error_at_once(fake, settings, message):
    settings = {"url": fake.url + settings.pop("path", ""), **settings}
    (request,) = send([Request(0, 0, 1, 1)], Server(model="m", **settings), prompt=lambda r: "well")
    assert request.state is State.CANCELLED and re.search(message, request.error)
    assert request.finished is not None


def test_nobody_listening_is_said_so():
    made = [Request(0, 0, 1, 1)]
    (request,) = send(made, Server("http://127.0.0.1:9", "m"), prompt=lambda r: "well")
    assert "refused the connection; is the server running?" in request.error


def test_an_answer_without_a_token_is_an_error(fake):
    (request,) = send([Request(0, 0, 1, 1)], Server(fake.url, "m", extra={"max_tokens": 0}), prompt=lambda r: "well")
    assert "sent no token" in request.error


def test_several_tokens_in_one_event_are_counted(fake):
    fake.burst = 2
    (request,) = ask(fake, "well", count=3)
    assert len(request.times) == 6 and len(set(request.times)) == 3
    assert evenly([1.0, 2.0], 4) == [1, 1, 2, 2] and evenly([1.0, 2.0, 3.0], 4) == [1, 2, 3, 3]
    assert evenly([1.0, 2.0], 0) == [1, 2] and evenly([], 3) == []


def test_requests_without_anything_to_send_are_refused_before_any_is_sent(fake):
    with pytest.raises(ValueError, match="Request 0 has no ids to send"):
        send([Request(0, 0, 1, 1)], Server(fake.url, "m"))
    assert fake.asked == []


BAD = ["127.0.0.1:8000", "ftp://host", "http://", "http://host:80000", "http://host:0", "http://host:x", "http://[::1"]


@pytest.mark.parametrize("url", BAD)
def test_an_address_that_is_none_is_refused(url):
    with pytest.raises(ValueError, match="looks like http"):
        Server(url, "m")


def test_a_key_that_no_header_can_hold_is_refused_and_not_shown():
    with pytest.raises(ValueError, match="one line of ASCII") as raised:
        Server("http://host", "m", api_key="secret\n")
    assert "secret" not in str(raised.value)
