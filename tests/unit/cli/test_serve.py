"""`lessons serve`: what it takes, what it refuses in a sentence, and how Ctrl-C ends it."""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.server import LONG, NETWORK, TOKENIZER, metric, post, until

from lessons_lib import cli
from lessons_lib.paths import ROOT


@pytest.mark.parametrize("model", ["gpt2", "mamba"])
def test_serve_names_its_families_and_the_commands_for_others(checkpoints, model, capsys):
    assert cli.main(["serve", "--model", str(checkpoints / model), "--device", "cpu"]) == 2
    said = capsys.readouterr().err
    assert "takes Llama-like models" in said and f"no model type '{model}'" in said and "target(" not in said
    assert "`lessons generate` and `lessons compare` take any causal model" in said
    with pytest.raises(SystemExit):
        cli.main(["serve", "--help"])
    assert "Llama-like model" in capsys.readouterr().out


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
