"""Our server on loopback with a tiny model, what asks it, and what its answers must be."""

import re
import socket
import threading
import time
from contextlib import contextmanager

import httpx
import openai
import torch
from support.small_tokenizers import byte_level

from lessons_lib.decoding.generate import generate
from lessons_lib.models import tiny
from lessons_lib.models.hub import LanguageModel
from lessons_lib.serving.server import Uvicorn, make_worker

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
