"""Lessons found by name, their parameters read, and what does not exist refused."""

import nbformat
import pytest

from lessons_lib.course import lessons
from lessons_lib.course.lessons import UsageError


@pytest.fixture
def three(write_lesson):
    return [write_lesson(name) for name in ("00_machine", "01_prefill", "02_kv_cache")]


def test_unknown_lesson_is_answered_with_the_valid_ones(three):
    with pytest.raises(UsageError, match="No lesson 07.*00_machine, 01_prefill, 02_kv_cache"):
        lessons.select(three, ["01", "07"])


def test_parameters_are_read_with_their_types(three):
    expected = {"model": "tiny", "device": "auto", "dtype": "auto", "seed": 0, "tokens": 3, "rate": 0.5}
    assert lessons.parameters(three[0]) == expected


@pytest.fixture
def with_appendix(write_lesson):
    """A lesson, its appendix, and the next lesson; written in another order."""
    names = ("05x_serving_study", "06_drafts", "05_batching")
    return sorted((write_lesson(name) for name in names), key=lambda lesson: lesson.name)


def test_lessons_are_found_in_order_with_their_appendices_and_other_files_are_not(with_appendix, tmp_path):
    for name in ("scratch", "05y_other"):
        (tmp_path / "notebooks" / f"{name}.ipynb").write_text("{}")
    found = lessons.find(tmp_path / "notebooks")
    assert found == with_appendix
    assert [lesson.number for lesson in found] == ["05", "05x", "06"]


@pytest.mark.parametrize(
    "asked, chosen",
    [
        ([], ["05", "05x", "06"]),
        (["05"], ["05"]),
        (["05x"], ["05x"]),
        (["serving_study", "05"], ["05", "05x"]),
        (["drafts", "05_batching"], ["05", "06"]),
        (["05x_serving_study"], ["05x"]),
    ],
)
def test_number_name_and_short_name_choose_a_lesson_or_its_appendix(with_appendix, asked, chosen):
    assert [lesson.number for lesson in lessons.select(with_appendix, asked)] == chosen


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("gamma: int = 4  # draft tokens\nend = None\nplain = 0.5", {"gamma": 4, "end": None, "plain": 0.5}),
        ("models: list[str] = [  # a list\n    'a',\n    'c',\n]\nx = 1", {"models": ["a", "c"], "x": 1}),
    ],
)
def test_parameters_may_be_typed_and_take_several_lines(three, source, found):
    change_parameters(three[0], source)
    assert lessons.parameters(three[0]) == found


def test_a_parameter_that_is_computed_is_refused(three):
    change_parameters(three[0], "seed = len('x')")
    with pytest.raises(UsageError, match="no literal"):
        lessons.parameters(three[0])


def change_parameters(lesson, source):
    nb = lesson.read()
    nb.cells[2].source = source
    nbformat.write(nb, lesson.path)


def test_misspelt_parameter_is_answered_with_the_valid_ones(three):
    with pytest.raises(UsageError, match="No parameter tokns.*device, dtype, model, rate, seed, tokens"):
        lessons.overrides(
            {three[0]: {"model": "", "device": "", "dtype": "", "rate": 1.0, "seed": 0, "tokens": 3}}, {"tokns": "4"}
        )


def test_each_lesson_gets_only_the_parameters_that_it_has(three):
    given = lessons.overrides({three[0]: {"a": 1}, three[1]: {"b": "x"}}, {"a": "5", "b": "7"})
    assert given == {three[0]: {"a": 5}, three[1]: {"b": "7"}}


@pytest.mark.parametrize(
    "text, default, value",
    [("32", 64, 32), ("32", "auto", "32"), ("2", 0.5, 2), ("[1, 2]", [1], [1, 2]), ("x", None, "x")],
)
def test_a_value_is_read_as_its_defaults_type(text, default, value):
    assert lessons.parse("name", text, default) == value


@pytest.mark.parametrize("text, default", [("many", 64), ("1.5", 64), ("1", True)])
def test_a_value_of_another_type_is_refused(text, default):
    with pytest.raises(UsageError, match="Parameter name takes"):
        lessons.parse("name", text, default)


def test_a_parameter_without_a_value_is_refused():
    with pytest.raises(UsageError, match="NAME=VALUE"):
        lessons.settings(["tokens"])
