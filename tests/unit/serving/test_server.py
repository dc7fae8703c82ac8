"""The server on loopback with a tiny model: every answer is that of generate, and what goes wrong is said."""

import json
import re
import socket
import threading
from contextlib import contextmanager
from functools import partial
from itertools import count

import httpx
import openai
import pytest
import torch
from support.server import (
    CHAT,
    CONTEXT,
    LONG,
    MODEL,
    NETWORK,
    TOKENIZER,
    VOCABULARY,
    all_free,
    alone,
    client_of,
    metric,
    post,
    serving,
    until,
)
from support.small_tokenizers import byte_level

from lessons_lib.decoding.sampling import Sampling
from lessons_lib.models.hub import LanguageModel
from lessons_lib.paths import ROOT
from lessons_lib.serving.client import Server, send
from lessons_lib.serving.server import make_worker
from lessons_lib.serving.workload import Poisson, Uniform, Workload


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
        assert {answer.sequence.id for answer in worker.unanswered} == {0, 1}
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


def test_a_request_that_waits_while_a_step_fails_is_answered():
    statuses = {}

    def ask(name):
        statuses[name] = post(worker, {"prompt": "ab", "max_tokens": 5, "temperature": 0}).status_code

    with serving(max_num_seqs=1) as worker, held(worker) as gate:
        steps, run = count(), worker.engine.run
        worker.engine.run = lambda plan: 1 / 0 if next(steps) == 1 else run(plan)
        threads = [threading.Thread(target=ask, args=(name,)) for name in ("running", "waiting")]
        threads[0].start()
        until(lambda: worker.scheduler.running)
        threads[1].start()
        until(lambda: not worker.inbox.empty())  # the step that fails is the next one
        gate.set()
        for thread in threads:
            thread.join()
    assert statuses == {"running": 500, "waiting": 200}


def test_a_scheduler_that_fails_while_nothing_runs_fails_what_waits():
    with serving() as worker:
        schedule, calls = worker.scheduler.schedule, count()
        worker.scheduler.schedule = lambda now: 1 / 0 if next(calls) == 0 else schedule(now)
        statuses = [post(worker, {"prompt": "ab", "max_tokens": 2, "temperature": 0}).status_code for _ in "ab"]
    assert statuses == [500, 200]


def test_settings_that_cannot_work_are_refused():
    for wrong in (
        {"max_model_len": CONTEXT + 1}, {"num_blocks": 4, "max_model_len": 65}, {"max_queue": -1}, {"max_model_len": 0},
    ):  # fmt: skip
        with pytest.raises(ValueError, match="max_model_len is at least 2 and at most"):
            make_worker(MODEL, **wrong)
    assert make_worker(MODEL, num_blocks=4).max_model_len == 64
