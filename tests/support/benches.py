"""The benches with tiny models: what is measured takes milliseconds, and its numbers mean nothing."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from support.drafts import perturbed
from support.heads import heads_of

from bench import common, medusa, questions
from lessons_lib import data
from lessons_lib.data import Question
from lessons_lib.models import LanguageModel, tiny

TOKENS = 12
TURNS = ("Repeat: ab ab ab ab.", "Now cd cd cd.")
WIDTHS = (1, 3, 61)  # rows of a Medusa step
ACCURACIES = [[1 / 60] * 60, [0.01] * 4]  # of 97 tokens: the top 60 hold about two of three first draft tokens


class Letters:
    """A tokenizer of single characters; 97 of them."""

    eos_token_id = None

    def get_vocab(self) -> dict[str, int]:
        return {chr(i): i for i in range(97)}

    def __len__(self) -> int:
        return 97

    def __call__(self, text: str, **options) -> SimpleNamespace:
        return SimpleNamespace(input_ids=[ord(letter) % 97 for letter in text])

    def apply_chat_template(self, messages, **options) -> list[int]:
        return [ord(letter) % 97 for message in messages for letter in message["content"]]

    def decode(self, ids, **options) -> str:
        return "".join(map(chr, ids))


def offline(monkeypatch) -> tuple[LanguageModel, LanguageModel]:
    """The benches with a tiny float64 model, and one like it as its draft; answers of TOKENS tokens; no compiling."""
    letters, network = Letters(), tiny(context=2048)
    of = LanguageModel(network, letters, "tiny", "cpu", torch.float64)
    eager, compiled = of.target(), of.target()
    monkeypatch.setattr(common, "model", lambda dtype="": of)
    monkeypatch.setattr(common, "eager", lambda dtype="": eager)
    monkeypatch.setattr(questions, "compiled", lambda: compiled)
    monkeypatch.setattr(questions, "TOKENS", TOKENS)
    return of, LanguageModel(perturbed(network, 0.03), letters, "tiny-draft", "cpu", torch.float64)


def asks(monkeypatch, kinds, words: str = "ab ab.") -> None:
    """The benches' own questions are one of each of these kinds, in turn; those of a file are read."""
    own = [Question(i, kind, (f"{kind} {i}: {words}",)) for i, kind in enumerate(kinds, 1)]
    monkeypatch.setattr(questions, "questions", lambda path=None: data.questions(path) if path else own)


def another_file(monkeypatch, tmp_path) -> Path:
    """A file with question 81 of two turns, of a category that ours do not have; the compiled target may not run."""
    monkeypatch.setattr(questions, "compiled", lambda: pytest.fail("their prompts may not fit its caches"))
    path = tmp_path / "other.jsonl"
    path.write_text(json.dumps({"question_id": 81, "category": "roleplay", "turns": TURNS}) + "\n")
    return path


def with_heads(monkeypatch) -> LanguageModel:
    """As `offline`, and for bench/medusa.py two random heads, trees of 2 or 60 nodes, and shorter texts to time."""
    of, _ = offline(monkeypatch)
    for name, value in (("heads", heads_of(of.network, count=2)), ("accuracies", ACCURACIES)):
        monkeypatch.setattr(medusa, name, lambda value=value: value)
    monkeypatch.setattr(medusa, "WIDTHS", WIDTHS)
    monkeypatch.setattr(medusa, "CACHED", 20)
    return of
