"""The command `lessons`: help with examples, errors of one sentence, and the installed script."""

import subprocess
import sys

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


@pytest.mark.parametrize("command", [["generate", "Hello"], ["compare"], ["probe"]])
@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("smollm2-153m", "did you mean 'smollm2-135m'?"),
        ("t5", "is no causal model but a T5ForConditionalGeneration"),
        ("bert", "is no causal model but a BertForMaskedLM"),
        (".", "has no config.json"),
        ("HuggingFaceTB/SmolLM2-360M-Instruct", "comes from the Hugging Face hub"),
    ],
)
def test_a_model_that_cannot_be_used_is_refused_in_a_sentence(
    checkpoints, command, model, said, capsys, monkeypatch, tmp_path
):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", offline)
    name = str(checkpoints / model) if model in ("t5", "bert", ".") else model
    assert cli.main([*command, "--model", name, "--device", "cpu"]) == 2
    written = capsys.readouterr().err
    assert said in written and "Traceback" not in written and len(written.strip().splitlines()) == 1


@pytest.mark.parametrize("model", ["gpt2", "mamba"])
def test_serve_names_its_families_and_the_commands_for_others(checkpoints, model, capsys):
    assert cli.main(["serve", "--model", str(checkpoints / model), "--device", "cpu"]) == 2
    said = capsys.readouterr().err
    assert "takes Llama-like models" in said and f"no model type '{model}'" in said and "target(" not in said
    assert "`lessons generate` and `lessons compare` take any causal model" in said
    with pytest.raises(SystemExit):
        cli.main(["serve", "--help"])
    assert "Llama-like model" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("command", "model", "said"),
    [
        (["generate", "Hello"], "smollm2-153m", "did you mean 'smollm2-135m'?"),
        (["compare"], "smollm2-153m", "did you mean 'smollm2-135m'?"),
        (["probe"], "smollm2-153m", "did you mean 'smollm2-135m'?"),
        (["serve"], "smollm2-153m", "did you mean 'smollm2-135m'?"),
        (["generate", "Hello"], "bert", "is no causal model but a BertForMaskedLM"),
        (["compare"], "bert", "is no causal model but a BertForMaskedLM"),
        (["serve"], "HuggingFaceTB/SmolLM2-360M-Instruct", "comes from the Hugging Face hub"),
    ],
)
def test_the_installed_command_refuses_in_a_sentence(checkpoints, lessons, tmp_path, command, model, said):
    name = checkpoints / model if model == "bert" else model
    done = lessons(*command, "--model", name, "--device", "cpu", HF_HUB_CACHE=str(tmp_path))
    assert done.returncode == 2 and said in done.stderr
    assert done.stdout == "" and len(done.stderr.strip().splitlines()) == 1 and "Traceback" not in done.stderr


def offline(*call, **options):
    raise OSError("no network")


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA out of memory."), RuntimeError("DefaultCPUAllocator: can't allocate memory")]
)
def test_a_model_that_does_not_fit_says_so_and_what_to_try(monkeypatch, capsys, error):
    def load(*call):
        raise error

    monkeypatch.setattr(common, "load", load)
    assert cli.main(["generate", "Hello"]) == 2
    said = capsys.readouterr().err
    assert "smollm2-135m does not fit into this device's memory" in said and "--dtype" in said


def test_an_error_of_the_program_is_not_hidden(monkeypatch):
    def load(*call):
        raise RuntimeError("a bug")

    monkeypatch.setattr(common, "load", load)
    with pytest.raises(RuntimeError, match="a bug"):
        cli.main(["generate", "Hello"])


def test_control_c_ends_a_command_without_a_traceback(monkeypatch, capsys):
    def load(*call):
        raise KeyboardInterrupt

    monkeypatch.setattr(common, "load", load)
    assert cli.main(["generate", "Hello"]) == 130
    assert capsys.readouterr().err == "\nstopped\n"
