"""The client against `transformers serve` on loopback, with a tiny model; runs where its server packages are."""

import os
import socket
import subprocess
import sys
import time
from urllib.request import urlopen

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from lessons_lib.decoding.sequence import Sequence
from lessons_lib.models import tiny
from lessons_lib.serving.client import Server, send
from lessons_lib.serving.metrics import latency

for package in ("fastapi", "uvicorn", "openai"):
    pytest.importorskip(package)

WORDS = {f"w{i}": i for i in range(97)}


SIZES = ["--cb-block-size", "32", "--cb-num-blocks", "64", "--cb-max-batch-tokens", "128"]  # else most of the memory


@pytest.fixture(scope="module", params=[[], ["--continuous-batching", *SIZES]], ids=["one by one", "continuous"])
def server(tmp_path_factory, request):
    folder = tmp_path_factory.mktemp("served")
    tiny().float().save_pretrained(folder)
    words = Tokenizer(models.WordLevel(WORDS, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w0").save_pretrained(folder)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "transformers.cli.transformers", "serve", str(folder), "--host", "127.0.0.1"]
    process = subprocess.Popen(
        [*command, "--port", str(port), "--device", "cpu", *request.param], env={**os.environ, "HF_HUB_OFFLINE": "1"}
    )
    try:
        wait_until_healthy(f"http://127.0.0.1:{port}", process)
        yield Server(f"http://127.0.0.1:{port}", str(folder), extra={}, timeout=120)
    finally:
        process.kill()
        process.wait()


def wait_until_healthy(url, process):
    for _ in range(480):  # four minutes
        try:
            if urlopen(f"{url}/health", timeout=5).status == 200:
                return
        except OSError:
            assert process.poll() is None, "the server ended before it listened"
        time.sleep(0.5)
    pytest.fail("the server was not up in time")


def test_a_workload_replayed_against_a_real_server_gives_every_token_a_time(server):
    made = [Sequence(i, 0.05 * i, 1, 5) for i in range(3)]
    served = send(made, server, prompt=lambda r: f"w{r.id} w5 w6")
    assert [request.error for request in served] == [None] * 3
    assert [len(request.times) for request in served] == [5] * 3
    assert [request.prompt_length for request in served] == [3] * 3
    assert latency(served).failed == 0


def test_what_the_server_refuses_is_its_own_message(server):
    (request,) = send([Sequence(0, 0, output_length=5, ids=[1, 2])], server)
    assert "answered 400: " in request.error and "prompt must be a string" in request.error
