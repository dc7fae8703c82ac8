"""Other engines on the same requests: vLLM's process with a vllm module of the tests' own, transformers for real."""

import json
import os
import subprocess
import sys
import time

import pytest
import torch

from bench import vllm
from bench.common import NotMeasured
from lessons_lib.decoding.sequence import Sequence

REQUESTS = [Sequence("a", ids=[7, 8], output_length=3), Sequence("b", ids=[20], output_length=9, max_tokens=2)]

VLLM = """
import json, os, subprocess, sys, time
from types import SimpleNamespace as Some
HOW = os.environ["HOW"]
class SamplingParams(Some):
    pass
class LLM:
    def __init__(self, **settings):
        print("a banner, which goes to stdout")
        with open(os.environ["SEEN"], "w") as file:
            print(json.dumps(settings), os.environ["VLLM_CPU_KVCACHE_SPACE"], os.getpid(), file=file)
        if HOW == "die":
            raise MemoryError("no room for the cache")
        if HOW == "child":
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
            print(child.pid, file=open(os.environ["SEEN"], "w"))
        self.calls = 0
    def generate(self, prompts, params, use_tqdm):
        self.calls += 1
        if self.calls > 1:
            if HOW == "hang":
                time.sleep(60)
            if HOW == "later":
                os._exit(3)
            assert all(p.ignore_eos and p.temperature == 0 and p.min_tokens == p.max_tokens for p in params)
        short = HOW == "short" and self.calls > 1
        made = [range(x["prompt_token_ids"][-1] + 1, x["prompt_token_ids"][-1] + 1 + p.max_tokens - short)
                for x, p in zip(prompts, params, strict=True)]
        return [Some(outputs=[Some(token_ids=tuple(ids))]) for ids in made]
"""


@pytest.fixture
def seen(monkeypatch, tmp_path):
    """Where the vllm of these tests writes what it was given; vLLM's Python is this one, which goes wrong by HOW."""
    (tmp_path / "vllm.py").write_text(VLLM)
    for name, value in {"PYTHONPATH": tmp_path, "SEEN": tmp_path / "seen", "HOW": "well"}.items():
        monkeypatch.setenv(name, str(value))
    return tmp_path / "seen"


def once(python, folder, requests, **settings):
    with vllm.vllm(python, folder, **settings) as (serve, facts):
        return serve(requests), facts


@pytest.mark.parametrize("environ", [{}, {"VLLM_PYTHON": ""}, {"VLLM_PYTHON": "/no/such/python"}])
def test_without_an_environment_for_vllm_a_sentence_says_what_to_set(environ):
    with pytest.raises(NotMeasured, match="^not measured: set VLLM_PYTHON to the Python of an environment"):
        vllm.vllm_python(environ)
    assert vllm.vllm_python({"VLLM_PYTHON": sys.executable}) == sys.executable


def test_vllm_is_asked_for_exact_lengths_and_answers_each_request_in_turn(seen, tmp_path):
    ids, facts = once(sys.executable, tmp_path / "model", REQUESTS, slots=4)
    assert ids == [[9, 10, 11], [21, 22]]
    assert facts["versions"]["torch"].startswith(torch.__version__.split("+")[0])
    assert facts["model"] == "model" and facts["max_num_seqs"] == 4  # no path of this machine is kept
    given, space, _ = seen.read_text().rsplit(maxsplit=2)
    given = json.loads(given)
    assert given["model"] == str(tmp_path / "model") and given["dtype"] == "bfloat16" and given["max_num_seqs"] == 4
    assert given["enable_prefix_caching"] is False and space == "1"


@pytest.mark.parametrize(
    "how, message",
    [
        ("die", "(?s)^vLLM's process gave no answer; the end of its log: .*no room for the cache"),
        ("later", "^vLLM's process gave no answer"),
        ("hang", "^vLLM's process took longer than 3 s"),
        ("short", "^Request a got 2 tokens instead of 3"),
    ],
)
def test_a_vllm_that_fails_gives_a_clear_error_and_no_hang(seen, tmp_path, monkeypatch, how, message):
    monkeypatch.setenv("HOW", how)
    with pytest.raises(RuntimeError, match=message):
        once(sys.executable, tmp_path, REQUESTS, limit=3 if how == "hang" else 60)


def test_nothing_that_vllm_started_stays(seen, tmp_path, monkeypatch):
    monkeypatch.setenv("HOW", "child")
    once(sys.executable, tmp_path, REQUESTS)
    child, end = int(seen.read_text()), time.monotonic() + 20
    while running(child) and time.monotonic() < end:
        time.sleep(0.02)
    assert not running(child)


def running(pid: int) -> bool:
    """Whether a process is there and no zombie that nobody has waited for."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    status = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True).stdout
    return not status.startswith("Z")
