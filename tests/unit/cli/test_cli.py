"""The command `lessons`: help with examples, errors of one sentence, Ctrl-C, its output, and the installed script."""

import io
import subprocess
import sys
from unittest.mock import Mock

import pytest
import torch

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


def test_the_installed_command_refuses_a_model_in_a_sentence(checkpoints, lessons):
    done = lessons("compare", "--model", checkpoints / "bert", "--device", "cpu")
    assert done.returncode == 2 and "is no causal model but a BertForMaskedLM" in done.stderr
    assert done.stdout == "" and len(done.stderr.strip().splitlines()) == 1


def offline(*call, **options):
    raise OSError("no network")


@pytest.mark.parametrize("command", [["generate", "Hello"], ["compare"], ["probe"], ["serve"]])
@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("smollm2-153m", "did you mean 'smollm2-135m'?"),
        ("t5", "is no causal model but a T5ForConditionalGeneration"),
        ("HuggingFaceTB/SmolLM2-360M-Instruct", "comes from the Hugging Face hub"),
    ],
)
def test_every_command_refuses_a_model_in_a_sentence(checkpoints, command, model, said, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", offline)
    name = str(checkpoints / model) if model == "t5" else model
    assert cli.main([*command, "--model", name, "--device", "cpu"]) == 2
    written = capsys.readouterr().err
    assert said in written and len(written.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (torch.OutOfMemoryError("CUDA out of memory."), 2, "smollm2-135m does not fit into this device's memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), 2, "use a smaller model, another --device"),
        (KeyboardInterrupt(), 130, "\nstopped\n"),
    ],
)
def test_what_ends_a_command_early_is_said_in_a_sentence(monkeypatch, capsys, error, status, said):
    monkeypatch.setattr(common, "load", Mock(side_effect=error))
    assert cli.main(["generate", "Hello"]) == status
    assert said in capsys.readouterr().err


def test_an_error_of_the_program_is_not_hidden(monkeypatch):
    monkeypatch.setattr(common, "load", Mock(side_effect=RuntimeError("a bug")))
    with pytest.raises(RuntimeError, match="a bug"):
        cli.main(["generate", "Hello"])


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
