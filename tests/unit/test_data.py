"""The questions: our own file keeps its promises, any file in Spec-Bench's format is read, a bad line is named."""

import json
import re
from collections import Counter

import pytest

from lessons_lib.data import HELD_OUT, TEXTS, Question, prompts, question, questions, text
from lessons_lib.paths import ROOT
from lessons_lib.training.prompts import own

LINE = {"question_id": 81, "category": "writing", "turns": ["Write.", "Rewrite."], "reference": ["", ""]}


def test_our_own_questions_are_many_of_every_category_and_some_have_several_turns():
    ours = questions()
    counts = Counter(question.category for question in ours)
    assert set(counts) == {"chat", "summarization", "qa", "code", "math", "writing", "lists"}
    assert min(counts.values()) >= 8
    assert sum(counts.values()) - counts["lists"] >= 60
    several = {question.category for question in ours if len(question.turns) > 1}
    assert several == {"chat"} and sum(len(question.turns) > 1 for question in ours) >= 4
    assert len({question.turns for question in ours}) == len(ours)


def test_a_question_is_found_by_its_number():
    assert question(202).question_id == 202
    with pytest.raises(ValueError, match="there is no question 199"):
        question(199)


def test_held_out_prompts_are_of_every_kind_that_is_measured_and_each_source_is_in_the_notice():
    """Every tenth id: what `training.prompts` never trains on."""
    kinds = Counter(question.category for question in questions(HELD_OUT))
    assert set(kinds) == {"chat", "qa", "summarization", "code", "math"} and 4 <= min(kinds.values())
    assert max(kinds.values()) == 12 and all(question.question_id % 10 == 0 for question in questions(HELD_OUT))
    sources = {json.loads(line)["source"] for line in HELD_OUT.read_text(encoding="utf-8").splitlines()}
    notice = (ROOT / "NOTICE").read_text(encoding="utf-8")
    assert len(sources) == 6 and all(f'"{source}"' in notice for source in sources)
    assert not {question.turns for question in questions(HELD_OUT)} & {question.turns for question in questions()}


def test_no_question_that_is_measured_trains_a_draft_or_heads():
    measured = {turn for question in questions() for turn in question.turns}
    assert not measured & {prompt.text for prompt in own()}


def test_a_spec_bench_file_is_read_with_its_further_keys_and_empty_lines(tmp_path):
    path = tmp_path / "question.jsonl"
    text = "Line\u2028separator"  # inside a JSON text this ends no line
    second = json.dumps(LINE | {"question_id": 82, "turns": [text]}, ensure_ascii=False)
    path.write_text(f"{json.dumps(LINE)}\n\n{second}\n", encoding="utf-8")
    assert questions(path) == [Question(81, "writing", ("Write.", "Rewrite.")), Question(82, "writing", (text,))]
    assert questions(str(path))[0].messages == [{"role": "user", "content": "Write."}]


@pytest.mark.parametrize("bad, said", [
    ('{"question_id": 2,', "is no question"),
    ("[1, 2]", "is no question"),
    ('{"question_id": 2, "turns": ["a"]}', "lacks 'category'"),
    ('{"question_id": 2, "category": "math"}', "lacks 'turns'"),
    ('{"question_id": "2", "category": "math", "turns": ["a"]}', "question_id is no whole number but '2'"),
    ('{"question_id": 2, "category": "", "turns": ["a"]}', "category is no text"),
    ('{"question_id": 2, "category": "math", "turns": "a"}', "turns is no list of texts"),
    ('{"question_id": 2, "category": "math", "turns": []}', "turns is no list of texts"),
    ('{"question_id": 2, "category": "math", "turns": ["a", " "]}', "one of them is empty"),
])  # fmt: skip
def test_a_line_that_is_no_question_is_named(tmp_path, bad, said):
    path = tmp_path / "question.jsonl"
    path.write_text(json.dumps(LINE) + "\n" + bad)
    with pytest.raises(ValueError, match=f"line 2 of .*question.jsonl.*{said}.*write it like"):
        questions(path)


def test_an_empty_file_and_a_question_that_comes_twice_are_refused(tmp_path):
    path = tmp_path / "question.jsonl"
    path.write_text("\n")
    with pytest.raises(ValueError, match="holds no question; write one a line"):
        questions(path)
    path.write_text(2 * (json.dumps(LINE) + "\n"))
    with pytest.raises(ValueError, match="question_id 81 comes twice"):
        questions(path)


def articles(part: str) -> list[str]:
    return re.split(r"(?m)^= (?=[^=])", text(part))[1:]


def test_the_texts_are_whole_articles_detokenised_and_none_is_in_both():
    articles_of = ("evaluation", "calibration")
    for part in articles_of:
        assert text(part).startswith("= ") and 50_000 <= len(text(part).encode()) <= 70_000
        assert not re.search(r"@[-,.]@| [,.;:)]|\( | \" |\u2028", text(part))
    assert (len(articles("evaluation")), len(articles("calibration"))) == (8, 2)
    assert not set(articles("evaluation")) & set(articles("calibration"))
    paragraphs = [set(filter(None, text(part).split("\n"))) for part in articles_of]
    assert {line for line in paragraphs[0] & paragraphs[1] if not line.startswith("==")} == set()
    notice = (ROOT / "NOTICE").read_text(encoding="utf-8")
    assert all(file in notice for file in TEXTS.values())


def test_no_prompt_of_ours_holds_a_passage_of_the_texts():
    """Paragraphs of 200 letters and more, of which a prompt would quote the beginning."""
    asked = " ".join(turn for q in questions() + questions(HELD_OUT) for turn in q.turns)
    assert not [line for part in TEXTS for line in text(part).split("\n") if len(line) > 200 and line[:100] in asked]


def test_a_text_that_is_not_there_is_refused_with_those_that_are():
    with pytest.raises(ValueError, match="no text 'test'; choose one of evaluation, calibration"):
        text("test")


def test_prompts_are_lines_of_text_or_json(tmp_path):
    path = tmp_path / "prompts"
    path.write_text("First prompt.\n\n  A second {one} \n", encoding="utf-8")
    assert prompts(path) == [Question(1, "text", ("First prompt.",)), Question(2, "text", ("A second {one}",))]
    lines = ['"A text."', '{"prompt": "Hi", "category": "chat", "more": 1}', '{"prompt": "Ho"}', json.dumps(LINE)]
    path.write_text("\n".join(lines), encoding="utf-8")
    assert [(one.question_id, one.category, one.turns) for one in prompts(path)] == [
        (1, "text", ("A text.",)),
        (2, "chat", ("Hi",)),
        (3, "text", ("Ho",)),
        (4, "writing", ("Write.", "Rewrite.")),
    ]


def test_a_mark_at_the_beginning_of_a_file_is_no_part_of_its_first_line(tmp_path):
    path = tmp_path / "prompts"
    path.write_text('{"prompt": "Hi", "category": "chat"}\n', encoding="utf-8-sig")
    assert prompts(path) == [Question(1, "chat", ("Hi",))]
    path.write_text("First prompt.\n", encoding="utf-8-sig")
    assert prompts(path) == [Question(1, "text", ("First prompt.",))]
    path.write_text(json.dumps(LINE), encoding="utf-8-sig")
    assert questions(path)[0].question_id == 81


def test_a_file_in_another_encoding_is_named(tmp_path):
    path = tmp_path / "prompts.txt"
    path.write_text("First prompt.\n", encoding="utf-16")
    with pytest.raises(ValueError, match="prompts.txt is not in UTF-8 .*; save it as UTF-8"):
        prompts(path)


@pytest.mark.parametrize("line", ['{"prompt": 3}', '{"prompt": ""}', '{"text": "x"}', '"', "[1]"])
def test_a_prompt_that_cannot_be_read_is_named_by_its_line(tmp_path, line):
    path = tmp_path / "prompts.jsonl"
    path.write_text(f'"good"\n{line}\n', encoding="utf-8")
    with pytest.raises(ValueError, match="line 2 of .*prompts.jsonl"):
        prompts(path)
    path.write_text("\n \n")
    with pytest.raises(ValueError, match="holds no prompt"):
        prompts(path)
