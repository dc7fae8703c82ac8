"""The command `lessons`: help with examples, errors of one sentence, Ctrl-C, its output, and the installed script."""

import io
import json
import struct
import subprocess
import sys

import pytest
from transformers import LlamaConfig

from lessons_lib import cli
from lessons_lib.cli import common, course
from lessons_lib.paths import ROOT

COMMANDS = ("generate", "compare", "probe", "serve", *course.NEEDED)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_a_help_with_examples(name, capsys):
    with pytest.raises(SystemExit, match="0"):
        cli.main([name, "--help"])
    said = capsys.readouterr().out
    lines = said.partition("examples:\n")[2].strip().splitlines()
    assert len(lines) == (1 if name == "lab" else 2) and all(f"lessons {name}" in line for line in lines)


def test_the_module_and_the_command_are_one_and_list_the_commands(lessons):
    module = subprocess.run([sys.executable, "-m", "lessons_lib", "--help"], cwd=ROOT, capture_output=True, text=True)
    installed = lessons("--help")
    assert module.returncode == installed.returncode == 0 and module.stdout == installed.stdout
    assert all(f"\n    {name} " in module.stdout for name in COMMANDS)


@pytest.mark.parametrize(
    ("command", "model", "said"),
    [
        (["probe"], "smollm2-153m", "did you mean 'smollm2-135m'?"),
        (["serve"], "smollm2-153m", "did you mean 'smollm2-135m'?"),
        (["compare"], "bert", "is no causal model but a BertForMaskedLM"),
        (["generate", "Hello"], "HuggingFaceTB/SmolLM2-360M-Instruct", "comes from the Hugging Face hub"),
    ],
)
def test_the_installed_command_refuses_in_a_sentence(checkpoints, lessons, tmp_path, command, model, said):
    name = checkpoints / model if model == "bert" else model
    done = lessons(*command, "--model", name, "--device", "cpu", HF_HUB_CACHE=str(tmp_path))
    assert done.returncode == 2 and said in done.stderr
    assert done.stdout == "" and len(done.stderr.strip().splitlines()) == 1 and "Traceback" not in done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="limits a process's memory by Linux's address space")
def test_the_installed_command_says_what_to_do_where_a_model_does_not_fit(lessons, tmp_path):
    """An embedding of 8 GB in 16 bits, in a file without contents, and room for 24 GB in all: not enough in fp32."""
    import resource

    rows, width = 2**26, 64
    folder = tmp_path / "large"
    sizes = dict(intermediate_size=64, num_hidden_layers=1, num_attention_heads=4)
    LlamaConfig(vocab_size=rows, hidden_size=width, architectures=["LlamaForCausalLM"], **sizes).save_pretrained(folder)
    weight = {"dtype": "F16", "shape": [rows, width], "data_offsets": [0, 2 * rows * width]}
    header = json.dumps({"model.embed_tokens.weight": weight}).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + 2 * rows * width)  # takes no disk
    limit = lambda: resource.setrlimit(resource.RLIMIT_AS, (24 * 2**30,) * 2)  # noqa: E731
    done = lessons("generate", "Hello", "--model", folder, "--device", "cpu", "--dtype", "fp32", before=limit)
    assert done.returncode == 2 and len(done.stderr.strip().splitlines()) == 1
    assert "does not fit into this device's memory" in done.stderr and "use a smaller model" in done.stderr


def test_control_c_ends_a_command_without_a_traceback(monkeypatch, capsys):
    def load(*call):
        raise KeyboardInterrupt

    monkeypatch.setattr(common, "load", load)
    assert cli.main(["generate", "Hello"]) == 130
    assert capsys.readouterr().err == "\nstopped\n"


def test_a_character_that_the_output_cannot_hold_is_replaced(monkeypatch):
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding="cp1252"))
    monkeypatch.setattr(cli.generate, "run", lambda options: print("a \u2192 b", flush=True) or 0)
    assert cli.main(["generate", "Hello"]) == 0
    assert sys.stdout.buffer.getvalue().strip() == b"a ? b"


def test_a_reader_that_ends_first_ends_the_command_without_a_traceback(checkpoints):
    call = [sys.executable, "-m", "lessons_lib", "generate", "Hello", "--model", str(checkpoints / "gpt2")]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([*call, "--device", "cpu"], cwd=ROOT, text=True, **pipes) as process:
        process.stdout.close()
        said = process.stderr.read()
    assert process.returncode == 1 and "Traceback" not in said and "BrokenPipe" not in said
