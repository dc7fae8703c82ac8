"""Lesson 07's exercises: the usual mistakes are seen."""

import pytest


def found(ids, n, num_tokens, latest, last=1):
    """What follows the first, or latest, place of the last n of `ids`; last=0 lets the end find itself."""
    places = [i for i in range(len(ids) - n + 1 - last) if ids[i : i + n] == ids[-n:]]
    at = (places[-1] if latest else places[0]) + n if places else len(ids)
    return ids[at : at + num_tokens]


def passes(prompt, new, max_ngram, num_tokens, *, latest=False, shortest=False):
    done, count = 1, 0
    while done < len(new):
        text, guess = prompt + new[:done], []
        for n in range(1, max_ngram + 1) if shortest else range(max_ngram, 0, -1):
            guess = guess or (found(text, n, num_tokens, latest) if n < len(text) else [])
        while guess and done < len(new) - 1 and guess[0] == new[done]:
            guess, done = guess[1:], done + 1
        done, count = done + 1, count + 1
    return count


@pytest.mark.parametrize("name, attempt", [
    ("07.1", lambda ids, n, num_tokens: found(ids, n, num_tokens, latest=True)),
    ("07.3", lambda ids, start, num_tokens: (ids[start:] * num_tokens)[:num_tokens]),
    ("07.4", passes),
])  # fmt: skip
def test_the_helpers_of_this_file_are_right_as_they_stand(name, attempt, checked):
    assert checked(name, attempt) == f"{name}: passed\n"


@pytest.mark.parametrize("name, wrong", [
    ("07.1", lambda ids, n, num_tokens: found(ids, n, num_tokens, latest=False)),  # the first
    ("07.1", lambda ids, n, num_tokens: found(ids, n, num_tokens, latest=True, last=0)),  # finds itself
    ("07.1", lambda ids, n, num_tokens: found(ids, n, num_tokens + n, latest=True)),
    ("07.2", lambda v, k: 1 - 1 / v),  # if each token is right or wrong on its own
    ("07.2", lambda v, k: v / k),
    ("07.2", lambda v, k: (v - 1) / (k + 1)),
    ("07.3", lambda ids, start, num_tokens: ids[start : start + num_tokens]),  # stops where the text stops
    ("07.3", lambda ids, start, num_tokens: (ids[start:] + ids * num_tokens)[:num_tokens]),  # goes on at its beginning
    ("07.3", lambda ids, start, num_tokens: (ids[start:] + ids[-1:] * num_tokens)[:num_tokens]),
    ("07.4", lambda *given: passes(*given, latest=True)),
    ("07.4", lambda *given: passes(*given, shortest=True)),
    ("07.4", lambda *given: passes(*given) + 1),  # counts the prefill
])  # fmt: skip
def test_the_usual_mistakes_are_seen(name, wrong, checked):
    said = checked(name, wrong)
    assert said.startswith(f"{name}: not yet") and " raised " not in said
