"""Lesson 06 with other pairs than its own: nothing but its parameters changes."""

import pytest
import torch
from support.families import tiny_of

from lessons_lib.course.lessons import find
from lessons_lib.course.runner import execute

CLASSIC = {"pythia-1.4b-deduped": "pythia-160m", "opt-1.3b": "opt-125m"}


@pytest.fixture(autouse=True)
def _timed_once(monkeypatch):
    monkeypatch.setenv("LESSONS_LIB_QUICK", "1")


def run(folder, **values):
    """-> what failed, nothing if all went well."""
    [lesson] = [lesson for lesson in find() if lesson.number == "06"]
    return execute(lesson, {"repeats": 1} | values, folder).failure


@pytest.mark.hub
@pytest.mark.parametrize(("model", "draft"), CLASSIC.items(), ids=list(CLASSIC))
def test_the_classic_pairs_run(model, draft, request, tmp_path):
    if "hub" not in request.config.option.markexpr:
        pytest.skip("fetches gigabytes from the Hugging Face hub; ask for it with pytest -m hub")
    assert run(tmp_path, model=model, draft=draft) == ""


@pytest.fixture
def folders(smollm2, tmp_path):
    """A pair that is no Llama, on disk, with a tokenizer that has no chat template: model, draft."""
    template, smollm2.tokenizer.chat_template = smollm2.tokenizer.chat_template, None
    try:
        for seed, name in enumerate(("model", "draft")):
            sizes = dict(vocab_size=smollm2.shape.vocab_size, context=1024)
            network = tiny_of("gpt_neox", 2 - seed, torch.float32, seed, **sizes)
            network.save_pretrained(tmp_path / name)
            smollm2.tokenizer.save_pretrained(tmp_path / name)
    finally:
        smollm2.tokenizer.chat_template = template
    return {name: str(tmp_path / name) for name in ("model", "draft")}


def test_a_pair_of_another_family_runs_without_card_and_chat_template(folders, tmp_path):
    assert run(tmp_path, **folders, gamma=3, max_new_tokens=8, timed_tokens=8) == ""
