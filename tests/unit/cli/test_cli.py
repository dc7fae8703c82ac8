"""The command `lessons`: help with examples, errors of one sentence, Ctrl-C, and the installed script."""

import subprocess
import sys

import pytest

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


def test_control_c_ends_a_command_without_a_traceback(monkeypatch, capsys):
    def load(*call):
        raise KeyboardInterrupt

    monkeypatch.setattr(common, "load", load)
    assert cli.main(["generate", "Hello"]) == 130
    assert capsys.readouterr().err == "\nstopped\n"
