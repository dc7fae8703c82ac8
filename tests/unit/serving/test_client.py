"""The client against a small server on loopback that behaves, and misbehaves, as it is asked to."""

import asyncio
import json
import re
import socket
import struct
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from support.server import serving

from lessons_lib.decoding.sequence import Sequence, Status
from lessons_lib.serving.client import Server, evenly, send
from lessons_lib.serving.metrics import latency

GAP, SLOW = 0.01, 0.2  # seconds between events

RELEASE = threading.Event()

THOUGHTS = {  # what the first deltas of a chat bring before its content
    "vllm": [{"reasoning": "hm", "content": None}] * 2,
    "another": [{"thoughts": [{"text": "hm"}]}] * 2,
    "well": [{"role": "assistant", "content": "", "tool_calls": None}] * 2,
}


class Fake(BaseHTTPRequestHandler):
    """Answers as many events as asked; what goes wrong is the first word of the prompt."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.send_error(404)

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append((self.path, self.headers, asked))
        prompt = asked.get("prompt") or asked["messages"][0]["content"]
        self.how = prompt.split()[0] if isinstance(prompt, str) else "well"
        if self.how == "refuse":
            return self.send_error(422, "too long")
        self.close_connection = True
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.answer(asked["max_tokens"], chat="messages" in asked)

    def answer(self, count, chat):
        self.write(b": a comment\n\n")
        if chat:
            self.event({"choices": [{"delta": {"role": "assistant"}, "finish_reason": None}]})
            for delta in THOUGHTS[self.how]:
                self.event({"choices": [{"delta": delta, "finish_reason": None}]})
        if self.how == "open":
            time.sleep(SLOW)
            RELEASE.set()
        for i in range(count):
            if i == 2 and self.misbehave():
                return
            said = {"delta": {"content": "a"}} if chat else {"text": "a"}
            if not (self.how == "silent" or (self.how == "end-token" and i == count - 1)):
                self.event({"choices": [{**said, "finish_reason": None}]})
            time.sleep(SLOW if self.how == "slow" else GAP)
        if self.how == "unfinished":
            return self.write(b"")
        self.event({"choices": [{**({"delta": {}} if chat else {"text": ""}), "finish_reason": "length"}]})
        thought = len(THOUGHTS[self.how]) if chat and self.how != "well" else 0
        counts = {"prompt_tokens": 7, "completion_tokens": (count + thought) * self.server.burst}
        self.event({"choices": [], "usage": counts})
        self.write(b"data: [DONE]\n\n")
        self.write(b"")

    def misbehave(self):
        if self.how in ("hang", "gate"):
            RELEASE.wait(20)
        while self.how == "trickle" and not RELEASE.wait(0.02):
            self.write(b": still there\n\n")
        if self.how == "reset":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
        if self.how == "garbage":
            self.write(b"data: {oops\n\n")
        if self.how == "report":
            self.event({"error": {"message": "out of memory"}})
        return self.how in ("drop", "reset", "hang", "trickle", "garbage", "report")

    def event(self, content):
        self.write(b"data: " + json.dumps(content).encode() + b"\n\n")

    def write(self, data):
        try:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
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
    made = [Sequence(i, 0.0, 1, count) for i in range(len(words))]
    return send(made, Server(fake.url, "m", **settings), prompt=lambda r: words[r.id])


def test_every_token_is_timed_and_the_metrics_are_those_of_the_engine(fake):
    first, second = ask(fake, "well", "well", count=5)
    for request in (first, second):
        assert request.status is Status.FINISHED and request.error is None
        assert request.num_output_tokens == len(request.times) == 5 and request.prompt_length == 7
        assert 0 < request.times[0] and request.times == sorted(request.times)
        assert request.times[-1] <= request.finished
    seen = latency([first, second])
    assert seen.failed == 0 and seen.output_throughput == 10 / seen.makespan


def test_a_token_is_timed_before_the_next_one_is_sent_and_requests_run_side_by_side(fake):
    """The gate's third token waits until the second request is being answered."""
    made = [Sequence(0, 0.0, 1, 4), Sequence(1, SLOW, 1, 1)]
    gate, other = send(made, Server(fake.url, "m"), prompt=lambda r: ["gate", "open"][r.id])
    assert gate.error is None and gate.times[1] < other.times[0] and gate.times[2] > SLOW


def test_a_client_works_where_an_event_loop_is_running_as_in_a_notebook(fake):
    async def cell():
        return ask(fake, "well")

    (request,) = asyncio.run(cell())
    assert request.error is None and len(request.times) == 4


def test_what_is_asked(fake, monkeypatch):
    for name in ("OPENAI_API_KEY", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID"):
        monkeypatch.setenv(name, "a secret of another server")
    made = [Sequence(0, 0, output_length=9, max_tokens=3, ids=[5, 6, 7])]
    send(made, Server(fake.url + "/v1/", "m", api_key="k", extra={"ignore_eos": True}))
    path, headers, body = fake.asked[0]
    assert path == "/v1/completions" and headers["Authorization"] == "Bearer k"
    assert headers["Connection"] == "close"  # one that the server is about to close is never used again
    assert body.pop("stream_options") == {"include_usage": True}
    assert body == {"model": "m", "prompt": [5, 6, 7], "max_tokens": 3, "stream": True, "ignore_eos": True}
    assert made[0].status is Status.WAITING  # the workload itself stays as it was
    send(made, Server(fake.url, "m"))
    assert fake.asked[1][1]["Authorization"] == "Bearer none"
    assert not any("secret" in value for _, headers, _ in fake.asked for value in headers.values())


def test_no_proxy_stands_between_the_client_and_the_server(fake, monkeypatch):
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")  # nobody listens there
    (request,) = ask(fake, "well")
    assert request.error is None


def test_the_chat_endpoint_gets_messages_and_its_role_event_is_no_token(fake):
    (request,) = ask(fake, "well spoken", count=3, chat=True)
    assert fake.asked[0][0] == "/v1/chat/completions"
    assert fake.asked[0][2]["messages"] == [{"role": "user", "content": "well spoken"}]
    assert len(request.times) == 3 and request.error is None


@pytest.mark.parametrize("server", ["vllm", "another"])
def test_reasoning_is_tokens_and_the_first_of_them_is_the_first_token(fake, server):
    (request,) = ask(fake, server, count=1, chat=True)
    assert request.error is None and len(request.times) == 3


def test_requests_are_sent_when_they_arrive(fake):
    made = [Sequence(0, 0.3, 1, 1), Sequence(1, 0.0, 1, 1)]
    served = send(made, Server(fake.url, "m"), prompt=lambda r: "well")
    assert [request.id for request in served] == [1, 0]
    assert served[1].times[0] >= 0.3 and served[1].timeline().ttft >= 0


@pytest.mark.parametrize("how", ["drop", "unfinished"])
def test_a_dropped_connection_is_one_clear_error_and_the_others_go_on(fake, how):
    served = ask(fake, "well", how, "well")
    assert [request.status for request in served] == [Status.FINISHED, Status.CANCELLED, Status.FINISHED]
    broken = "the answer broke off", "the stream ended without a finish_reason; the server cut it off"
    tokens = 4 if how == "unfinished" else 2
    assert re.search(rf"Request 1: ({'|'.join(broken)}).* \(after {tokens} tokens\)", served[1].error)
    assert len(served[1].times) == tokens
    assert latency(served).failed == 1 and latency(served).output_throughput == 8 / latency(served).makespan


@pytest.mark.parametrize(
    "how, message",
    [
        ("reset", "the answer broke off: ReadError"),
        ("garbage", "no event of a completion: '{oops'"),
        ("report", "the server reports: .*out of memory"),
        ("refuse", "the server answered 422: .*too long"),
    ],
)
def test_a_server_that_misbehaves_gives_an_error_and_the_others_go_on(fake, how, message):
    well, bad = ask(fake, "well", how)
    assert well.error is None and re.search(message, bad.error)


def test_a_server_that_falls_silent_gives_an_error_and_no_hang(fake):
    for how in ("hang", "trickle"):
        (silent,) = ask(fake, how, timeout=0.3)
        assert re.search(r"no event came from http.* for 0.3 s \(after 2 tokens\)", silent.error)


def test_the_timeout_is_for_each_event_and_not_for_the_whole_answer(fake):
    (request,) = ask(fake, "slow", timeout=3.5 * SLOW)
    assert request.error is None and request.times[-1] - request.times[0] > 2.5 * SLOW


def test_nobody_listening_is_said_so():
    made = [Sequence(0, 0, 1, 1)]
    (request,) = send(made, Server("http://127.0.0.1:9", "m"), prompt=lambda r: "well")
    assert "cannot reach http://127.0.0.1:9; is it running? ConnectError" in request.error


def test_several_tokens_in_one_event_are_counted(fake):
    fake.burst = 2
    (request,) = ask(fake, "well", count=3)
    assert len(request.times) == 6 and len(set(request.times[:-1])) == 3  # the last one's is that of the end
    assert evenly([1.0, 2.0], 4) == [1, 1, 2, 2] and evenly([1.0, 2.0, 3.0], 4) == [1, 2, 3, 3]
    assert evenly([1.0, 2.0], 0) == [1, 2] and evenly([], 3) == []


def test_a_last_token_without_text_has_the_time_of_the_end(fake):
    (request,) = ask(fake, "end-token")
    assert request.error is None and len(request.times) == 4 and request.times == sorted(set(request.times))
    (silent,) = ask(fake, "silent")
    assert silent.status is Status.FINISHED and len(silent.times) == silent.num_output_tokens == 4
    fake.burst = 0
    assert "the server sent no token" in ask(fake, "silent")[0].error


def test_text_that_was_held_back_for_a_stop_text_is_no_token():
    assert evenly([1.0, 2.0, 3.0], 2) == [1, 2]
    with serving() as worker:
        made = [Sequence(0, 0.0, 1, 8)]
        server = Server(worker.url, "tiny", extra={"temperature": 0, "ignore_eos": True, "stop": ["@@@@@@@"]})
        (request,) = send(made, server, prompt=lambda r: "abc " * 12)
    assert request.error is None and request.num_output_tokens == 8


def test_a_request_with_ids_keeps_its_own_prompt_and_can_be_sent_again(fake):
    (request,) = send([Sequence(0, 0.0, ids=[5, 6, 7], output_length=2)], Server(fake.url, "m"))
    assert request.error is None and request.prompt_length == 3 and request.fresh().ids == [5, 6, 7]
    assert ask(fake, "well")[0].prompt_length == 7  # of a text, the server's count


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://host", "http://host:80000"])
def test_an_address_that_is_none_is_refused(url):
    with pytest.raises(ValueError, match="looks like http"):
        Server(url, "m")


def test_a_key_that_no_header_can_hold_is_refused_and_not_shown():
    with pytest.raises(ValueError, match="one line of ASCII") as raised:
        Server("http://host", "m", api_key="secret\n")
    assert "secret" not in str(raised.value)


def test_without_the_openai_package_all_but_the_client_works():
    code = (
        "import sys; sys.modules['openai'] = None\n"
        "from lessons_lib.serving import Engine, Server\n"
        "try: Server('http://127.0.0.1:1', 'm')\n"
        "except ModuleNotFoundError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "needs the openai package" in done.stdout, done.stderr
