"""A sequence's bookkeeping."""

import pytest

from lessons_lib.decoding.sequence import Sequence


def test_all_but_the_newest_token_are_cached():
    request = Sequence(0, 0, 5, 4, ids=[4, 4, 4, 4, 4])
    assert request.num_uncomputed_tokens == 5 and request.prefilling
    request.commit(3, [])
    assert request.num_computed_tokens == 3 and request.num_uncomputed_tokens == 2 and request.prefilling
    request.commit(2, [7])
    assert request.num_computed_tokens == 5 and request.num_uncomputed_tokens == 1 and not request.prefilling
    request.commit(3, [8, 9])  # two draft tokens fed, one accepted
    assert request.num_computed_tokens == 7 and request.num_tokens == 8
    assert request.finish_reason is None
    request.commit(1, [1])
    assert request.finish_reason == "length" and request.num_computed_tokens == 8  # P + n - 1
    assert request.ids[5:] == [7, 8, 9, 1]


def test_a_prompt_of_one_token_is_a_prompt_nonetheless():
    assert Sequence(0, 0, 1, 4).prefilling


def test_a_preempted_request_keeps_what_it_emitted():
    request = Sequence(0, 0, 2, 4, ids=[5, 6])
    request.commit(2, [7])
    request.restart()
    assert (
        request.num_uncomputed_tokens == 3
        and request.num_output_tokens == 1
        and request.prefilling
        and request.ids == [5, 6, 7]
    )


def test_the_limit_that_policies_see_may_differ_from_the_true_length():
    request = Sequence(0, 0, 1, 10, max_tokens=2)
    request.commit(1, [1])
    assert request.finish_reason is None
    request.commit(1, [1])
    assert request.finish_reason == "length"
    assert Sequence(0, 0, 1, 10).max_tokens == 10
    assert (Sequence(0, 0, 1, 10, 2).length, Sequence(0, 0, 1, 2, 10).length) == (2, 2)
    assert Sequence(0, 0, 1, 9, 2, reply=[1, 2]).length == 2  # a reply need not go on after the limit


@pytest.mark.parametrize(
    "values, message",
    [
        ({"prompt_length": 0}, "at least one prompt token"),
        ({"prompt_length": 3, "output_length": 0}, "one output token"),
        ({"prompt_length": 3, "output_length": 9, "max_tokens": 0}, "one output token"),
        ({"prompt_length": 3, "ids": [1]}, "prompt_length 3, but 1 ids"),
        ({"prompt_length": 3, "arrival": -1.0}, "arrivals start at 0"),
        ({"prompt_length": 3, "arrival": float("nan")}, "arrives at nan s; arrivals start at 0 and are finite"),
        ({"prompt_length": 3, "arrival": float("inf")}, "are finite"),
        ({"prompt_length": 3, "output_length": 9, "reply": [1, 2]}, "a reply of 2 tokens, but 9 are to come"),
        ({"prompt_length": 3, "output_length": 9, "max_tokens": 3, "reply": [1, 2]}, "but 3 are to come"),
    ],
)
def test_impossible_requests_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        Sequence("r", **values)
