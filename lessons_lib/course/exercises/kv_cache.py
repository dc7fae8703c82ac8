"""Checkers: bytes of a cache, its capacity, attention over shared heads, and a cache that forgets."""

import torch

from lessons_lib.course.exercises import exercise, expect
from lessons_lib.models.decoder import attend


@exercise("02.1")
def cache_bytes(attempt):
    """2·L·H_kv·d·S·b·e, for shared heads and other element sizes."""
    expect(attempt, 30, 3, 64, 1, 1, 2, equals=23_040)
    expect(attempt, 32, 32, 128, 4096, 1, 2, equals=2 * 2**30)
    expect(attempt, 2, 1, 16, 5, 3, 4, equals=3_840)


@exercise("02.2")
def longest_answer(attempt):
    """P + n - 1 tokens are cached after n new ones."""
    expect(attempt, 8, 5, equals=4)
    expect(attempt, 5, 5, equals=1)
    expect(attempt, 4, 5, equals=0)
    expect(attempt, 3, 9, equals=0)


@exercise("02.3")
def attend_shared(attempt):
    """Grouped-query attention of one token, against the decoder's own."""
    random = torch.Generator().manual_seed(0)
    for heads, kv_heads, entries, dim in [(9, 3, 7, 4), (4, 4, 1, 8), (8, 1, 5, 2)]:
        q = torch.randn(heads, dim, generator=random, dtype=torch.float64)
        keys, values = torch.randn(2, kv_heads, entries, dim, generator=random, dtype=torch.float64)
        expect(attempt, q, keys, values, equals=attend(q[:, None], keys, values, None)[:, 0])


@exercise("02.4")
def append_and_forget(attempt):
    """The first `sinks` and the newest `window` entries, in order, each once."""
    keys = torch.arange(6.0).view(1, 6, 1)
    new = torch.tensor([6.0, 7.0]).view(1, 2, 1)
    for sinks, window, kept in [(2, 3, [0, 1, 5, 6, 7]), (0, 1, [7]), (1, 20, range(8)), (3, 5, range(8))]:
        expect(attempt, keys, new, sinks, window, equals=torch.tensor([float(k) for k in kept]).view(1, -1, 1))
