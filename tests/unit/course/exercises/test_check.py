"""Exercises: what a reader sees for a stub, a right attempt, a wrong one and a broken one."""

import pytest
import torch

from lessons_lib.course import exercises
from lessons_lib.course.exercises import check, exercise, expect


@pytest.fixture(autouse=True)
def _twice():
    @exercise("77.1")
    def twice(attempt):
        expect(attempt, 2, equals=4)
        expect(attempt, 0.5, equals=1.0)

    yield
    for name in ("77.1", "77.2"):
        exercises.CHECKERS.pop(name, None)


def test_a_stub_is_not_attempted_yet(checked):
    def twice(x):
        raise NotImplementedError

    assert checked("77.1", twice) == "77.1: not attempted yet\n"


def test_a_right_attempt_passes(checked):
    assert checked("77.1", lambda x: x + x) == "77.1: passed\n"


def test_a_wrong_attempt_is_told_for_which_input(checked):
    def square(x):
        return x * x

    assert checked("77.1", square) == "77.1: not yet. square(0.5) gave 0.25; expected 1.0.\n"


def test_an_attempt_that_raises_is_told_with_its_error(checked):
    def broken(x):
        return [][x]

    assert "broken(2) raised IndexError: list index out of range" in checked("77.1", broken)


def test_an_error_of_torch_is_told_though_it_is_of_the_stubs_kind(checked):
    def twice(x):
        return torch.tensor([x]).log_softmax(-1)  # of whole numbers

    assert "twice(2) raised NotImplementedError: " in checked("77.1", twice)


def test_an_assertion_of_the_checker_is_told_too(checked):
    @exercise("77.2")
    def counts(attempt):
        assert attempt() < 3, "too many forwards: at most 2 are needed"

    assert "too many forwards" in checked("77.2", lambda: 5)


def test_an_unknown_exercise_names_those_that_exist():
    with pytest.raises(ValueError, match="no exercise '77.9'; lesson 77 has: 77.1"):
        check("77.9", print)


@pytest.mark.parametrize(
    "got, wanted, equal",
    [
        (0.1 + 0.2, 0.3, True),
        (1.01, 1.0, False),
        ("ab", ["a", "b"], False),
        ([1, (2.0, 3)], [1, [2, 3]], True),
        ([1, 2], [1, 2, 3], False),
        (torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.0 + 1e-8]), True),
        (torch.tensor([[1.0, 2.0]]), torch.tensor([1.0, 2.0]), False),
        ([1.0, 2.0], torch.tensor([1.0, 2.0]), False),
        (torch.tensor(4), 4, True),
        (torch.tensor([True, False]), torch.tensor([True, False]), True),
        (torch.tensor([1.0, 0.0]), torch.tensor([True, False]), False),
        ({"a": 0.1 + 0.2, "b": 1}, {"b": 1, "a": 0.3}, True),
        ({"a": 1}, {"b": 1}, False),
        ([1], {"a": 1}, False),
        (float("nan"), 1.0, False),
    ],
)
def test_results_are_compared_by_value_shape_and_tolerance(got, wanted, equal):
    assert exercises.same(got, wanted) is equal


def test_a_long_value_is_cut():
    with pytest.raises(exercises.Wrong, match=r"\.\.\.; expected 0") as error:
        expect(lambda: list(range(1000)), equals=0)
    assert len(str(error.value)) < 300
