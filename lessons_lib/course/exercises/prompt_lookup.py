"""Checkers: the latest occurrence, how many drafts must be right, a copy that goes on, and a replay."""

import random

from lessons_lib.course.exercises import exercise, expect
from lessons_lib.decoding.prediction import Recording, replay
from lessons_lib.decoding.proposers.prompt_lookup import PromptLookup


@exercise("07.1")
def latest(attempt):
    """What followed the last earlier occurrence of the last n tokens."""
    expect(attempt, [1, 2, 3, 1, 2, 4, 1, 2], 2, 2, equals=[4, 1])
    expect(attempt, [1, 2, 3, 1, 2, 4, 1, 2], 1, 3, equals=[4, 1, 2])
    expect(attempt, [5, 5, 5], 2, 4, equals=[5])
    expect(attempt, [1, 2, 3], 1, 4, equals=[])
    expect(attempt, [7], 2, 4, equals=[])


@exercise("07.2")
def share_that_pays(attempt):
    """(v - 1) / k: k more tokens, that often, for v - 1 more forward passes."""
    expect(attempt, 2.0, 10, equals=0.1)
    expect(attempt, 1.0, 4, equals=0.0)
    expect(attempt, 3.5, 5, equals=0.5)


@exercise("07.3")
def copy_on(attempt):
    """The copied tokens, repeated where the text ends, as with the rule "recent"."""
    expect(attempt, [1, 2, 3, 1, 2], 2, 2, equals=[3, 1])
    expect(attempt, [1, 2, 3, 1, 2], 2, 8, equals=[3, 1, 2, 3, 1, 2, 3, 1])
    expect(attempt, [5, 5], 1, 3, equals=[5, 5, 5])


@exercise("07.4")
def passes(attempt):
    """Verification forward passes of a text, against `replay`."""
    rng = random.Random(0)
    expect(attempt, [1, 2, 3, 4], [1, 2, 3, 4, 1], 2, 10, equals=1)
    for alphabet in (2, 3, 50):
        ids = [rng.randrange(alphabet) for _ in range(60)]
        stats = replay(Recording(ids[:30], ids[30:]), PromptLookup(4, 2, rule="transformers"))
        expect(attempt, ids[:30], ids[30:], 2, 4, equals=len(stats) - 1)
