"""What the commands share: a model that cannot be used is refused in a sentence, other errors are not hidden."""

import pytest
import torch

from lessons_lib import cli
from lessons_lib.cli import common


def offline(*call, **options):
    raise OSError("no network")


@pytest.mark.parametrize("command", [["generate", "Hello"], ["compare"], ["probe"], ["serve"]])
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
