"""The server on loopback with a tiny model: every answer is that of generate, and what goes wrong is said."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import httpx
import openai
import pytest
import torch
from support.small_tokenizers import byte_level

from lessons_lib import cli
from lessons_lib.decoding.generate import generate
from lessons_lib.decoding.sampling import Sampling
from lessons_lib.models import tiny
from lessons_lib.models.hub import LanguageModel
from lessons_lib.paths import ROOT
from lessons_lib.serving.client import Server, send
from lessons_lib.serving.server import Uvicorn, make_worker
from lessons_lib.serving.workload import Poisson, Uniform, Workload

TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}> {% endif %}"
)
TOKENIZER = byte_level()
TOKENIZER.chat_template = TEMPLATE
CONTEXT, VOCABULARY = 2048, 259
NETWORK = tiny(vocab_size=VOCABULARY, context=CONTEXT)
MODEL = LanguageModel(NETWORK, TOKENIZER, "tiny", "cpu", torch.float64)
CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Who are you?"}]
LONG = dict(prompt="abc", max_tokens=1500, temperature=0)  # seconds of computing, if nobody stops it


@contextmanager
def serving(model=MODEL, **settings):
    """A server on a free port of loopback -> its worker, which knows its url."""
    worker = make_worker(model, **{"max_num_seqs": 4} | settings)
    server = Uvicorn(worker)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        worker.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            until(lambda: server.started)
            yield worker
        finally:
            server.should_exit = True
            thread.join(20)
    assert not thread.is_alive() and not worker.is_alive()
    assert all_free(worker)


@pytest.fixture(scope="module")
def worker():
    with serving() as worker:
        yield worker


@pytest.fixture
def client(worker):
    with client_of(worker) as client:
        yield client


def client_of(worker):
    return openai.OpenAI(base_url=f"{worker.url}/v1", api_key="none", max_retries=0, timeout=20)


def until(condition, seconds=20):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.005)


def all_free(worker):
    return worker.scheduler.pool.free_blocks == worker.scheduler.pool.num_blocks and not worker.scheduler.unfinished


def alone(prompt, **options):
    return generate(MODEL.target("decoder"), prompt, **options)


def post(worker, body, path="completions"):
    return httpx.post(f"{worker.url}/v1/{path}", json=body, timeout=30, trust_env=False)


def metric(worker, name, missing=None, **labels):
    """A value of /metrics. missing: its value where it is not there yet, as a count before its first event."""
    text = httpx.get(f"{worker.url}/metrics", trust_env=False).text
    found = re.findall(rf"^vllm:{name}{{(.*)}} (.*)$", text, re.M)
    values = [float(value) for said, value in found if all(f'{k}="{v}"' in said for k, v in labels.items())]
    if not values and missing is not None:
        return missing
    assert values, f"no vllm:{name} {labels} in\n{text}"
    return values[0]


def test_streamed_and_whole_completions_are_those_of_generate(client):
    for prompt in ("Once upon a time", TOKENIZER("Once upon a time").input_ids, ["one prompt in a list"]):
        plain = prompt[0] if isinstance(prompt[0], str) and isinstance(prompt, list) else prompt
        expected = alone(plain, max_new_tokens=40)
        ask = partial(client.completions.create, model="tiny", prompt=prompt, max_tokens=40, temperature=0)
        whole = ask()
        assert whole.choices[0].text == expected.text and whole.choices[0].finish_reason == "length"
        length = len(plain) if isinstance(plain, list) else len(TOKENIZER(plain).input_ids)
        assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (length, 40)
        assert whole.usage.total_tokens == length + 40 and whole.object == "text_completion"
        *parts, last = ask(stream=True)
        assert len(parts) > 10  # token by token, but for incomplete characters
        assert "".join(part.choices[0].text for part in parts) == expected.text
        assert [part.choices[0].finish_reason for part in (*parts, last)] == [None] * len(parts) + ["length"]


def test_streamed_and_whole_chats_are_those_of_generate(client):
    expected = alone(CHAT, max_new_tokens=30)
    parts = [{**message, "content": [{"type": "text", "text": message["content"]}]} for message in CHAT]
    ask = partial(client.chat.completions.create, model="tiny", max_completion_tokens=30, temperature=0)
    for messages in (CHAT, parts):
        whole = ask(messages=messages)
        assert whole.choices[0].message.content == expected.text and whole.choices[0].message.role == "assistant"
        assert whole.choices[0].finish_reason == "length" and whole.object == "chat.completion"
    first, *pieces, last, counts = ask(messages=CHAT, stream=True, stream_options={"include_usage": True})
    assert first.choices[0].delta.role == "assistant" and first.object == "chat.completion.chunk"
    assert "".join(piece.choices[0].delta.content for piece in pieces) == expected.text
    assert last.choices[0].finish_reason == "length" and not last.choices[0].delta.content
    assert counts.choices == [] and counts.usage.completion_tokens == 30
    assert len({part.id for part in (first, *pieces, last, counts)}) == 1


def test_a_seed_gives_the_text_that_generate_samples_with_it(client):
    settings = dict(temperature=1.3, top_p=0.9)
    for seed in (1, 2):
        generator, rule = torch.Generator().manual_seed(seed), Sampling(1.3, top_k=50, top_p=0.9)
        expected = alone("ab", max_new_tokens=20, acceptance=rule, generator=generator).text
        ask = partial(client.completions.create, model="tiny", prompt="ab", max_tokens=20, extra_body={"top_k": 50})
        assert ask(seed=seed, **settings).choices[0].text == expected
        assert "".join(part.choices[0].text for part in ask(seed=seed, stream=True, **settings)) == expected
    assert len({ask(**settings).choices[0].text for _ in range(4)}) > 1  # without a seed


def test_stop_texts_end_an_answer_also_across_pieces_and_are_never_shown(client):
    full = alone("Stop", max_new_tokens=60).text
    readable = max(re.findall(r"[ -~]{3,}", full[5:]), key=len)
    for stop in (readable, ["never there", readable[1:]]):
        expected = alone("Stop", max_new_tokens=60, stop=stop)
        assert expected.finish == "stop" and len(expected.text) >= 5
        ask = partial(client.completions.create, model="tiny", prompt="Stop", max_tokens=60, temperature=0, stop=stop)
        whole, parts = ask(), list(ask(stream=True))
        assert whole.choices[0].text == expected.text and whole.choices[0].finish_reason == "stop"
        assert whole.usage.completion_tokens == len(expected.ids) < 60
        assert "".join(part.choices[0].text for part in parts) == expected.text
        assert parts[-1].choices[0].finish_reason == "stop"


def test_an_end_token_ends_an_answer_unless_it_is_to_be_ignored():
    text = alone("end", max_new_tokens=30).ids
    end = text[12]
    first = text.index(end) + 1
    tokenizer = byte_level()
    tokenizer.eos_token = tokenizer.convert_ids_to_tokens(end)
    with (
        serving(LanguageModel(NETWORK, tokenizer, "tiny", "cpu", torch.float64)) as worker,
        client_of(worker) as client,
    ):
        ask = partial(client.completions.create, model="tiny", prompt="end", max_tokens=30, temperature=0)
        ended, ignored = ask(), ask(extra_body={"ignore_eos": True})
    assert (ended.choices[0].finish_reason, ended.usage.completion_tokens) == ("stop", first)
    assert (ignored.choices[0].finish_reason, ignored.usage.completion_tokens) == ("length", 30)


def test_limits_by_default_are_16_tokens_and_for_chats_the_rest_of_the_context():
    with serving(max_model_len=64) as worker:
        text = post(worker, {"prompt": "a"}).json()
        chat = post(worker, {"messages": CHAT}, "chat/completions").json()
        model = httpx.get(f"{worker.url}/v1/models", trust_env=False).json()["data"][0]
    assert text["usage"]["completion_tokens"] == 16
    assert chat["usage"]["total_tokens"] == 64
    assert (model["id"], model["max_model_len"]) == ("tiny", 64)


def test_many_at_once_in_few_blocks_are_answered_as_alone_and_preemptions_are_counted():
    prompts = [f"prompt {i} " * (1 + i % 5) for i in range(12)]
    limits = [20 + 7 * (i % 6) for i in range(12)]
    answers = {}

    def ask(i):
        body = {"prompt": prompts[i], "max_tokens": limits[i], "temperature": 0}
        answers[i] = post(worker, body).json()["choices"][0]["text"]

    with serving(num_blocks=12, max_num_batched_tokens=16) as worker:
        threads = [threading.Thread(target=ask, args=(i,)) for i in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert metric(worker, "num_preemptions_total") > 0
        assert metric(worker, "generation_tokens_total") == sum(limits)
    for i in range(12):
        assert answers[i] == alone(prompts[i], max_new_tokens=limits[i]).text


def test_our_own_client_passes_with_ids_and_with_chats(worker):
    load = Workload(12, Uniform(3, 40), Uniform(2, 20), Poisson(100), vocab_size=VOCABULARY).requests()
    for request in send(load, Server(worker.url, "tiny")):
        assert request.error is None and len(request.times) == request.length
    made = [request.fresh() for request in load[:4]]
    for request in send(made, Server(worker.url, "tiny", chat=True), prompt=lambda r: f"question {r.id}"):
        assert request.error is None and len(request.times) == request.length


def test_the_lines_of_the_docs_run(worker, capsys):
    text = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
    _engine, ask, measure = re.findall(r"```python\n(.*?)```", text, re.S)
    known = {}
    for code in (ask.replace('"smollm2-135m"', '"tiny"'), measure.replace("MODEL", "tiny").replace("(100,", "(4,")):
        exec(compile(code.replace("http://127.0.0.1:8000", worker.url), "serving.md", "exec"), known)
        assert len(capsys.readouterr().out) > 30
    assert [len(request.times) for request in known["served"]] == [request.length for request in known["made"]]


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
def test_a_dropped_connection_frees_the_blocks_of_its_request(worker, stream):
    before = metric(worker, "generation_tokens_total")
    aborted = metric(worker, "request_success_total", missing=0, finished_reason="abort")
    for _ in range(2):  # the first runs; then one is dropped that runs beside another
        with socket.create_connection(("127.0.0.1", int(worker.url.rpartition(":")[2]))) as raw:
            body = json.dumps(LONG | {"stream": stream}).encode()
            head = f"Host: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            raw.sendall(b"POST /v1/completions HTTP/1.1\r\n" + head.encode() + body)
            until(lambda: metric(worker, "num_requests_running") == 1 and metric(worker, "kv_cache_usage_perc") > 0)
            if stream:
                assert raw.recv(15) == b"HTTP/1.1 200 OK"
        until(lambda: all_free(worker) and not worker.unanswered and not worker.answers)
    assert metric(worker, "generation_tokens_total") - before < 2 * LONG["max_tokens"]
    assert metric(worker, "request_success_total", finished_reason="abort") == aborted + 2
    assert metric(worker, "kv_cache_usage_perc") == 0


BAD = {
    "too long": ({"prompt": "a" * 3000}, 400, "has 3000 tokens and up to 16 new ones .* fit in 2048; shorten"),
    "too many": ({"prompt": "a", "max_tokens": 2048}, 400, "1 tokens and up to 2048 new ones"),
    "unknown field": ({"prompt": "a", "temprature": 1}, 400, "The field temprature is unknown; leave it out"),
    "unknown option": ({"prompt": "a", "stream_options": {"x": 1}}, 400, "The field stream_options.x is unknown"),
    "no prompt": ({}, 400, "The field prompt is missing"),
    "empty prompt": ({"prompt": ""}, 400, "the prompt is empty"),
    "no ids": ({"prompt": []}, 400, "the prompt is empty"),
    "strange ids": ({"prompt": [1, 999]}, 400, "token id 999 is not in this model's vocabulary of 259"),
    "several prompts": ({"prompt": ["a", "b"]}, 400, "A request has one prompt, not 2; send a request for each"),
    "wrong prompt": ({"prompt": 5}, 400, "The field prompt is wrong"),
    "several answers": ({"prompt": "a", "n": 3}, 400, "does not offer n=3; leave n out"),
    "logprobs": ({"prompt": "a", "logprobs": 0}, 400, "does not offer logprobs=0; leave logprobs out"),
    "hot": ({"prompt": "a", "temperature": 3}, 400, "The field temperature is wrong: .* less than or equal to 2"),
    "text for a number": ({"prompt": "a", "max_tokens": "5"}, 400, "The field max_tokens is wrong: .* integer"),
    "no tokens": ({"prompt": "a", "max_tokens": 0}, 400, "The field max_tokens is wrong: .* greater than"),
    "empty stop": ({"prompt": "a", "stop": ""}, 400, "an empty stop text"),
    "wrong stop": ({"prompt": "a", "stop": 5}, 400, "The field stop is wrong: .* string"),
    "another model": ({"prompt": "a", "model": "gpt"}, 404, "no model 'gpt' here; this server has 'tiny'"),
    "no list": (["a"], 400, "The field body is wrong: .* dictionary"),
}


@pytest.mark.parametrize("body, status, message", BAD.values(), ids=BAD)
def test_a_wrong_request_is_refused_in_a_sentence_and_keeps_no_place(worker, body, status, message):
    answer = post(worker, body)
    error = answer.json()["error"]
    assert answer.status_code == error["code"] == status and re.search(message, error["message"])
    assert error["type"] == "invalid_request_error" and not worker.unanswered


BAD_CHATS = {
    "a prompt": ({"prompt": "a", "messages": CHAT}, "The field prompt is unknown"),
    "no messages": ({"messages": []}, "The field messages is wrong: .* at least 1"),
    "an image": (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "text": ""}]}]},
        "content.0.type is wrong",
    ),
    "tools": ({"messages": CHAT, "tools": [{"type": "function"}]}, "does not offer tools="),
    "JSON": ({"messages": CHAT, "response_format": {"type": "json_object"}}, "does not offer response_format="),
}


@pytest.mark.parametrize("body, message", BAD_CHATS.values(), ids=BAD_CHATS)
def test_a_wrong_chat_is_refused_in_a_sentence(worker, body, message):
    answer = post(worker, body, "chat/completions")
    assert answer.status_code == 400 and re.search(message, answer.json()["error"]["message"])


def test_fields_that_change_nothing_are_taken(worker):
    same = {"n": 1, "best_of": 1, "echo": False, "logprobs": None, "presence_penalty": 0.0, "user": "me", "stop": None}
    answer = post(worker, {"prompt": "ab", "max_tokens": 5, "temperature": 0, "top_k": -1, **same})
    assert answer.json()["choices"][0]["text"] == alone("ab", max_new_tokens=5).text


def test_a_template_that_refuses_the_messages_and_a_tokenizer_without_one_say_so():
    def asked(template):
        tokenizer = byte_level()
        tokenizer.chat_template = template
        with serving(LanguageModel(NETWORK, tokenizer, "tiny", "cpu", torch.float64)) as worker:
            answer = post(worker, {"messages": CHAT}, "chat/completions")
        return answer.status_code, answer.json()["error"]["message"]

    assert asked("{{ raise_exception('roles must alternate') }}") == (400, "roles must alternate")
    assert asked(None) == (400, "this model's tokenizer has no chat template: pass the prompt as text")


@contextmanager
def held(worker):
    """No step runs before the gate is set, which happens at the latest at the end."""
    gate, run = threading.Event(), worker.engine.run
    worker.engine.run = lambda plan: (gate.wait(), run(plan))[1]
    try:
        yield gate
    finally:
        gate.set()


def test_a_full_queue_refuses_and_takes_requests_again_later():
    with serving(max_num_seqs=1, max_queue=1) as worker, client_of(worker) as client, held(worker) as gate:
        ask = partial(client.completions.create, model="tiny", prompt="ab", max_tokens=5, temperature=0)
        answers = []
        threads = [threading.Thread(target=lambda: answers.append(ask().choices[0].text)) for _ in range(2)]
        for thread in threads:
            thread.start()
        until(lambda: len(worker.unanswered) == 2)
        with pytest.raises(openai.RateLimitError, match="queue is full: 1 requests run and 1 wait; try again later"):
            ask(timeout=5)
        gate.set()
        for thread in threads:
            thread.join()
        assert answers == [alone("ab", max_new_tokens=5).text] * 2 == [ask().choices[0].text] * 2


def test_a_request_that_is_dropped_while_it_waits_never_runs():
    with serving(max_num_seqs=1, max_model_len=CONTEXT) as worker, held(worker) as gate:
        first = threading.Thread(target=post, args=(worker, LONG | {"max_tokens": 3}))
        first.start()
        until(lambda: len(worker.scheduler.running) == 1)
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{worker.url}/v1/completions", json=LONG, timeout=0.2, trust_env=False)
        until(lambda: len(worker.unanswered) == 1)
        gate.set()
        first.join()
        until(lambda: not worker.answers)
        assert metric(worker, "generation_tokens_total") == 3 and metric(worker, "prompt_tokens_total") == 3


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


def test_a_step_that_fails_fails_its_requests_and_the_server_goes_on(monkeypatch, caplog):
    with serving() as worker, client_of(worker) as client:
        ask = partial(client.completions.create, model="tiny", prompt="ab", max_tokens=5, temperature=0)
        with monkeypatch.context() as broken:
            broken.setattr(worker.engine, "run", lambda plan: 1 / 0)
            with pytest.raises(openai.InternalServerError, match="The engine failed: ZeroDivisionError"):
                ask()
            with pytest.raises(openai.APIError, match="The engine failed: ZeroDivisionError") as failed:
                list(ask(stream=True))
            assert failed.value.type == "server_error"
        assert ask().choices[0].text == alone("ab", max_new_tokens=5).text
    assert "a step failed" in caplog.text


def test_settings_that_cannot_work_are_refused():
    for wrong in ({"max_model_len": CONTEXT + 1}, {"num_blocks": 4, "max_model_len": 65}, {"max_queue": -1}):
        with pytest.raises(ValueError, match="max_model_len is at least 2 and at most"):
            make_worker(MODEL, **wrong)
    assert make_worker(MODEL, num_blocks=4).max_model_len == 64


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    NETWORK.save_pretrained(folder)
    TOKENIZER.save_pretrained(folder)
    return str(folder)


def test_ctrl_c_ends_the_running_requests_with_a_sentence_and_the_command_with_0(folder):
    script = Path(sys.executable).with_name("lessons")
    call = [script, "serve", "--model", folder, "--port", "0", "--device", "cpu", "--dtype", "fp64"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(call, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        place = SimpleNamespace(url=re.search(r"http://127.0.0.1:\d+", process.stdout.readline())[0])
        answers = {}
        ask = lambda stream: answers.update({stream: post(place, LONG | {"stream": stream})})  # noqa: E731
        threads = [threading.Thread(target=ask, args=(stream,)) for stream in (True, False)]
        for thread in threads:
            thread.start()
        until(lambda: metric(place, "num_requests_running") == 2 and metric(place, "generation_tokens_total") > 20)
        process.send_signal(signal.SIGINT)
        for thread in threads:
            thread.join(20)
        out, errors = process.communicate(timeout=20)
    finally:
        process.kill()
    assert process.returncode == 0 and "All requests have ended." in out and "Traceback" not in errors
    stopped = "The server was stopped before this answer was complete."
    assert answers[False].status_code == 503 and answers[False].json()["error"]["message"] == stopped
    *pieces, last, rest = answers[True].text.split("\n\n")
    assert stopped in last and len(pieces) > 5 and all("text_completion" in piece for piece in pieces) and not rest


def test_what_the_command_cannot_do_is_one_sentence(folder, capsys):
    call = ["serve", "--model", folder, "--device", "cpu", "--dtype", "fp64"]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for options, message in [
            (["--port", port], f"Cannot listen on 127.0.0.1, port {port} .*in use.*; choose another --port"),
            (["--port", "70000"], "Cannot listen on 127.0.0.1, port 70000"),
            (["--max-num-batched-tokens", "3"], "max_num_batched_tokens must cover 16 tokens"),
            (["--max-model-len", "4000"], "max_model_len is at least 2 and at most 2048 here"),
            (["--model", "no-such-model"], "Unknown model 'no-such-model'"),
        ]:
            assert cli.main(call + options) == 2
            said = capsys.readouterr().err
            assert re.search(message, said) and said.count("\n") == 1, said


def test_without_its_packages_the_command_names_the_extra_that_brings_them():
    code = "import sys; sys.modules['uvicorn'] = None; from lessons_lib import cli; sys.exit(cli.main(['serve']))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert run.returncode == 2 and run.stderr == 'The server needs uvicorn: pip install ".[serve]".\n'


def test_the_commands_help_has_two_examples(capsys):
    with pytest.raises(SystemExit):
        cli.main(["serve", "--help"])
    assert len(re.findall(r"^  lessons serve --", capsys.readouterr().out, re.M)) == 2
