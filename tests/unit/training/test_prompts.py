"""Which prompts train a draft and which measure it."""

import json

import pytest

from lessons_lib.training import prompts
from lessons_lib.training.prompts import UserTurn


def file(tmp_path, *rows):
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return path


def test_a_context_stands_below_its_prompt(tmp_path):
    path = file(tmp_path, {"id": 3, "kind": "qa", "prompt": "Who?", "context": "Ann came."}, {"id": 4, "kind": "chat", "prompt": "Hi"})  # fmt: skip  # noqa: E501
    assert prompts.read(path) == [UserTurn(3, "qa", "Who?\n\nAnn came.", "Ann came."), UserTurn(4, "chat", "Hi")]


@pytest.mark.parametrize("row", [{"kind": "qa", "prompt": "Who?"}, {"id": "x", "kind": "qa", "prompt": "Who?"}, [1]])
def test_a_line_that_is_no_prompt_is_named(tmp_path, row):
    with pytest.raises(ValueError, match="line 2 of .* is no prompt"):
        prompts.read(file(tmp_path, {"id": 1, "kind": "qa", "prompt": "Who?"}, row))


def test_every_tenth_prompt_is_held_out_and_so_is_every_copy_of_it():
    several = [UserTurn(key, "chat", f"question {key}") for key in range(31)] + [UserTurn(41, "chat", "question 20")]
    kept = prompts.for_training(several)
    assert [prompt.key for prompt in several if prompt.held_out] == [0, 10, 20, 30]
    assert {prompt.key for prompt in kept} == set(range(31)) - {0, 10, 20, 30}


def test_prompts_of_our_own_differ_and_none_is_held_out():
    own = prompts.own()
    assert len({prompt.text for prompt in own}) == len({prompt.key for prompt in own}) == len(own) > 500
    assert prompts.for_training(own) == own and not any("\n" in prompt.key or "{" in prompt.text for prompt in own)


def test_a_passage_of_a_held_out_prompt_trains_nothing():
    several = [
        UserTurn(10, "qa", "Who?\n\nAnn came.", "Ann came."),
        UserTurn(11, "summary", "Sum up\n\nAnn came.", "Ann came."),
    ]
    assert prompts.for_training(several) == []


def test_a_solution_of_a_held_out_task_trains_nothing_not_even_as_a_copy():
    edits = [UserTurn(key, "code-edit", f"Rewrite\n\n{code}", code) for key, code in ((21, "f"), (24, "g"), (27, "f"))]
    several = [UserTurn(20, "code", "Write f"), UserTurn(23, "code", "Write g"), *edits, UserTurn(31, "code-edit", "?")]
    assert [prompt.key for prompt in prompts.for_training(several)] == [23, 24, 31]  # 31 has no passage to hide


def test_passages_are_asked_about_again_under_every_task():
    several = [
        UserTurn(3, "qa", "Who?\n\nAnn came.", "Ann came."),
        UserTurn(4, "qa", "Who?"),
        UserTurn(5, "code", "x\n\ny", "y"),
    ]
    found = prompts.again(several)
    assert len(found) == len({prompt.text for prompt in found}) == len({(p.kind, p.key) for p in found}) == 8
    assert all(prompt.text.endswith("\n\nAnn came.") for prompt in found) and prompts.for_training(found) == found


def test_whatever_is_done_first_is_of_every_kind():
    several = [UserTurn(n, "math", "") for n in range(5)] + [UserTurn(9, "chat", "")]
    assert [prompt.kind for prompt in prompts.interleave(several)] == ["math", "chat", "math", "math", "math", "math"]
