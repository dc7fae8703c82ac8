"""Lesson 08's exercises: the usual mistakes are seen."""

import pytest
import torch

from lessons_lib.decoding.probing import agreed


def rounds(next_token, prompt, guess, *, last=1, in_place=False):
    y, count = list(guess), 0
    while True:
        better = list(y)
        for i in range(len(y)):
            better[i] = next_token(prompt + (better if in_place else y)[:i])
        count += 1
        if better == y:
            return count - 1 + last
        y = better


def mask(W, N, sees):
    cells = [(r, i) for r in range(N - 1) for i in range(W)]
    return torch.tensor([[sees(r, i, s, j) for s, j in cells] for r, i in cells])


def fastest(found, v, width):
    speed = {key: tokens / v(width(*key)) for key, tokens in found.items()}
    best = max(speed, key=speed.get)
    return best if speed[best] > 1 else None


@pytest.mark.parametrize("name, attempt", [
    ("08.1", rounds),
    ("08.4", lambda found, v: fastest(found, v, lambda W, N, G: (W + G) * (N - 1))),
])  # fmt: skip
def test_the_helpers_of_this_file_are_right_as_they_stand(name, attempt, checked):
    assert checked(name, attempt) == f"{name}: passed\n"


@pytest.mark.parametrize("name, wrong", [
    ("08.1", lambda *given: rounds(*given, last=0)),  # the round that shows it is not counted
    ("08.1", lambda *given: rounds(*given, in_place=True)),  # Gauss-Seidel
    ("08.1", lambda next_token, prompt, guess: len(guess)),
    ("08.2", lambda guess, said: (said[: (n := agreed(guess, said))], said[n:])),  # the free token is kept back
    ("08.2", lambda guess, said: (said[: (n := agreed(guess, said)) + 1], guess[n:])),  # old guesses
    ("08.2", lambda guess, said: (said[: agreed(guess, said) + 1], said)),
    ("08.3", lambda W, N: torch.ones(W * (N - 1), W * (N - 1), dtype=torch.bool).tril()),  # plainly causal
    ("08.3", lambda W, N: mask(W, N, lambda r, i, s, j: s <= r and j == i)),  # columns alone
    ("08.3", lambda W, N: mask(W, N, lambda r, i, s, j: (s == 0 and j <= i) or (s == r and j == i))),
    ("08.3", lambda W, N: mask(W, N, lambda r, i, s, j: (s == 0 and j <= i) or (s <= r and j == i)).T),
    ("08.4", lambda found, v: max(found, key=found.get)),  # the most tokens
    ("08.4", lambda found, v: fastest(found, v, lambda W, N, G: W * (N - 1))),  # guesses cost nothing
    ("08.4", lambda found, v: max(found, key=lambda key: found[key] / v((key[0] + key[2]) * (key[1] - 1)))),
])  # fmt: skip
def test_the_usual_mistakes_are_seen(name, wrong, checked):
    said = checked(name, wrong)
    assert said.startswith(f"{name}: not yet") and " raised " not in said
