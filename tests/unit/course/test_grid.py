"""A sweep's points: combinations of values, each once, and new where anything behind it changed."""

import pytest

from lessons_lib.course import grid
from lessons_lib.course.grid import combinations, points
from lessons_lib.course.lessons import UsageError


@pytest.fixture
def lessons(write_lesson):
    """One lesson with gamma, one without."""
    return [write_lesson("05_plain", "print(tokens)"), write_lesson("06_drafts", "print(gamma)", gamma=4)]


def values(found):
    return [(point.lesson.number, point.values) for point in found]


def test_values_are_combined_and_commas_in_brackets_separate_nothing():
    assert combinations({"a": "1, 2", "b": "x,y"}) == [{"a": a, "b": b} for a in "12" for b in "xy"]
    assert combinations({"a": "[1,2],[3]"}) == [{"a": "[1,2]"}, {"a": "[3]"}]
    assert combinations({}) == [{}]


def test_a_lesson_gets_each_combination_of_the_parameters_that_it_has_once(lessons):
    found = points(lessons, ["05", "06"], {"gamma": "2,8", "tokens": "3,5"}, {"seed": "1"})
    assert values(found) == [
        ("05", {"seed": 1, "tokens": 3}),
        ("05", {"seed": 1, "tokens": 5}),
        *(("06", {"seed": 1, "gamma": g, "tokens": t}) for g in (2, 8) for t in (3, 5)),
    ]


def test_without_a_lesson_those_with_a_parameter_of_the_grid_are_meant(lessons):
    assert values(points(lessons, [], {"gamma": "2"}, {})) == [("06", {"gamma": 2})]


def test_a_value_that_is_the_default_is_the_same_point(lessons):
    [default], [named] = points(lessons, ["06"], {}, {}), points(lessons, ["06"], {"gamma": "4"}, {})
    assert default.key == named.key


@pytest.mark.parametrize(
    ("asked", "chosen", "fixed", "said"),
    [
        (["99"], {"gamma": "2"}, {}, "No lesson 99"),
        ([], {"gama": "2"}, {}, "No parameter gama. The chosen lessons have: .*gamma"),
        ([], {"gamma": "2,many"}, {}, "Parameter gamma takes a int"),
        ([], {"gamma": "2,,4"}, {}, "Parameter gamma of the grid lacks a value"),
        ([], {"gamma": "2"}, {"gamma": "4"}, "Give gamma in the grid or beside it"),
    ],
)
def test_what_does_not_exist_is_refused_with_what_does(lessons, asked, chosen, fixed, said):
    with pytest.raises(UsageError, match=said):
        points(lessons, asked, chosen, fixed)


def test_a_point_is_another_when_parameters_code_or_package_change_but_not_the_text(write_lesson, monkeypatch):
    def key(code="print(seed)", seed="0", **options):
        [point] = points([write_lesson("05_plain", code, **options)], ["05"], {}, {"seed": seed})
        return point.key

    same = key()
    assert key(title="# 00 Another title") == same
    assert key("print(seed + 1)") != same and key(seed="1") != same
    monkeypatch.setattr(grid, "package", lambda: "another")
    assert key() != same


def test_the_packages_fingerprint_follows_its_files(tmp_path, monkeypatch):
    (tmp_path / "lessons_lib").mkdir()
    source = tmp_path / "lessons_lib" / "__init__.py"
    monkeypatch.setattr(grid.lessons_lib, "__file__", str(source))
    seen = []
    for text in ("a = 1", "a = 2", "a = 1"):
        source.write_text(text)
        seen.append(grid.package.__wrapped__())
    assert seen[0] == seen[2] != seen[1]
