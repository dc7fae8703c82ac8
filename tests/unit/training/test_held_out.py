"""Which held-out prompts travel with the package: chosen evenly, short enough, the same at every time."""

import json
from types import SimpleNamespace

from lessons_lib.data import questions
from lessons_lib.training import held_out
from lessons_lib.training.prompts import UserTurn


def test_up_to_twelve_of_a_kind_are_chosen_spread_over_those_that_fit():
    prompts = [UserTurn(10 * i, "math", "x" * i) for i in range(60)] + [
        UserTurn(7, "math", "x"),
        UserTurn(10, "rewrite", "x"),
    ]
    chosen = held_out.choose(prompts, lambda prompt: 320 if len(prompt.text) < 48 else 321)
    assert [prompt.key for prompt in chosen] == [40 * i for i in range(12)]
    few = [UserTurn(10, "qa", "a"), UserTurn(20, "qa", "b"), UserTurn(30, "chat", "c"), UserTurn(40, "qa", "d")]
    tokens = {"a": 700, "b": 701, "c": 320, "d": 1}
    assert [prompt.key for prompt in held_out.choose(few, lambda prompt: tokens[prompt.text])] == [30, 10, 40]


def test_the_file_is_written_in_the_format_of_questions_with_sources(monkeypatch, tmp_path, capsys):
    lines = [
        {"id": 10, "kind": "summary", "prompt": "Sum up.", "context": "Größe.", "source": "A"},
        {"id": 11, "kind": "math", "prompt": "Never.", "context": "", "source": "B"},
        {"id": 20, "kind": "code", "prompt": "Sort.", "context": "", "source": "B"},
    ]
    prompts, into = tmp_path / "prompts.jsonl", tmp_path / "held_out.jsonl"
    prompts.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    words = SimpleNamespace(apply_chat_template=lambda turn, **options: [0] * len(turn[0]["content"].split()))
    target = SimpleNamespace(tokenizer=words, vocab_size=1)
    monkeypatch.setattr(held_out, "load", lambda device: SimpleNamespace(target=lambda: target))
    assert held_out.main(["--prompts", str(prompts), "--into", str(into)]) == 0
    assert capsys.readouterr().out == f"2 prompts in {into}\n"
    found = questions(into)
    assert [(q.question_id, q.category, q.turns) for q in found] == [
        (10, "summarization", ("Sum up.\n\nGröße.",)), (20, "code", ("Sort.",)),
    ]  # fmt: skip
    assert [json.loads(line)["source"] for line in into.read_text(encoding="utf-8").splitlines()] == ["A", "B"]
