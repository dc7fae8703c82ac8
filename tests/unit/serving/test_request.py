"""A request's bookkeeping."""

import pytest

from lessons_lib.serving.request import Request


def test_all_but_the_newest_token_are_cached():
    request = Request(0, 0, 5, 4, ids=[4, 4, 4, 4, 4])
    assert request.lacking == 5 and request.prefilling
    request.commit(3, [], 1.0)
    assert request.computed == 3 and request.lacking == 2 and request.prefilling
    request.commit(2, [7], 2.0)
    assert request.computed == 5 and request.lacking == 1 and not request.prefilling
    request.commit(3, [8, 9], 3.0)  # two guesses fed, one accepted
    assert request.computed == 7 and request.known == 8 and request.times == [2.0, 3.0, 3.0]
    assert not request.done
    request.commit(1, [1], 4.0)
    assert request.done and request.computed == 8  # P + n - 1
    assert request.ids[5:] == [7, 8, 9, 1]


def test_a_prompt_of_one_token_is_a_prompt_nonetheless():
    assert Request(0, 0, 1, 4).prefilling


def test_a_preempted_request_keeps_what_it_emitted():
    request = Request(0, 0, 2, 4, ids=[5, 6])
    request.commit(2, [7], 1.0)
    request.restart()
    assert request.lacking == 3 and request.emitted == 1 and request.prefilling and request.ids == [5, 6, 7]


def test_the_limit_that_policies_see_may_differ_from_the_true_length():
    request = Request(0, 0, 1, 10, max_tokens=2)
    request.commit(1, [1], 1.0)
    assert not request.done
    request.commit(1, [1], 2.0)
    assert request.done
    assert Request(0, 0, 1, 10).max_tokens == 10
    assert (Request(0, 0, 1, 10, 2).length, Request(0, 0, 1, 2, 10).length) == (2, 2)
    assert Request(0, 0, 1, 9, 2, reply=[1, 2]).length == 2  # a reply need not go on behind the limit


@pytest.mark.parametrize(
    "values, message",
    [
        ({"prompt_length": 0}, "at least one prompt token"),
        ({"prompt_length": 3, "output_length": 0}, "one output token"),
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
        Request("r", **values)
