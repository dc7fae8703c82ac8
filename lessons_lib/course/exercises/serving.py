"""Checkers of the serving study: batches that leave together, a rate, preempting for blocks, keys of shared blocks."""

from random import Random

from lessons_lib.course.exercises import Attempt, Wrong, called, exercise, expect
from lessons_lib.course.exercises.batching import Price

BLOCK = 16


@exercise("05x.1")
def first_tokens_static(attempt: Attempt) -> None:
    """A batch is admitted when nobody runs, and computes all its rows until its longest answer ends."""
    expect(attempt, [0, 0, 0, 9], [2, 4, 1, 1], 2, Price(1, 0), equals=[1, 1, 5, 1])
    expect(attempt, [0, 0.5, 4], [1, 1, 2], 1, Price(2, 0), equals=[2, 3.5, 2])
    expect(attempt, [0, 0, 0], [3, 1, 1], 2, Price(1, 1), equals=[3, 3, 11])
    expect(attempt, [5, 5.5], [2, 2], 4, Price(1, 0.5), equals=[1.5, 4])


@exercise("05x.2")
def rate_of(attempt: Attempt) -> None:
    """Requests per second by memory: decoding shares its pass with those that fit, a prompt has its own."""
    # OPT-13B; Llama-3-8B, with 8 KV heads for 32 query heads; a small model that computes longer than it reads
    expect(attempt, 26e9, 819_200, 25.7e9, 256.5, 128, equals=10.5033, tolerance=1e-3)
    expect(attempt, 16.1e9, 131_072, 15e9, 256.5, 128, equals=51.881, tolerance=1e-3)
    expect(attempt, 1e9, 20_000, 5e9, 100, 400, equals=124.8, tolerance=1e-3)


@exercise("05x.3")
def make_room(attempt: Attempt) -> None:
    """How many requests stay: each full last block needs a new one; the latest requests give theirs back."""
    expect(attempt, [20, 35, 7], 0, equals=3)
    expect(attempt, [16, 32], 2, equals=2)
    expect(attempt, [16, 30, 5], 0, equals=2)  # the third gives one block back, the first takes it
    expect(attempt, [48, 64, 16], 0, equals=1)  # one block back is too few for two, so the second leaves, too
    expect(attempt, [48, 30, 16], 1, equals=2)  # the third gives one back and needs none any more
    expect(attempt, [48, 64, 80, 96], 1, equals=3)
    expect(attempt, [32, 32, 32, 3], 0, equals=2)
    expect(attempt, [64, 16, 16, 16, 16], 1, equals=3)


@exercise("05x.4")
def block_keys(attempt: Attempt) -> None:
    """A key for each full block; two are equal exactly if all tokens up to the block's end are."""
    random = Random(0)
    text = [random.randrange(1000) for _ in range(4 * BLOCK)]
    block, other = text[:BLOCK], text[BLOCK : 2 * BLOCK]
    for tokens in (0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK, 4 * BLOCK - 1):
        keys = keys_of(attempt, text[:tokens], f"a text of {tokens} tokens")
        if len(keys) != tokens // BLOCK:
            raise Wrong(f"a text of {tokens} tokens has {tokens // BLOCK} full blocks; you gave {len(keys)} keys.")
        if keys != keys_of(attempt, text, "the longer text")[: len(keys)]:
            raise Wrong("one text begins with the other, so the keys of their common full blocks must be equal.")
    first, second = keys_of(attempt, [*block, *block], "a text that says the same twice")
    if first == second:
        raise Wrong("a text says the same 16 tokens twice: two blocks, with different keys and values, got one key.")
    after, changed = (keys_of(attempt, [*begin, *other], "a text of two blocks") for begin in (block, block[::-1]))
    if after[1] == changed[1]:
        raise Wrong("the same block after two different ones got the same key, though its keys and values differ.")
    if after[0] == changed[0]:
        raise Wrong("two different first blocks got the same key.")


def keys_of(attempt: Attempt, ids: list[int], what: str) -> list:
    return called(f"block_keys of {what}", lambda: list(attempt(ids)))
