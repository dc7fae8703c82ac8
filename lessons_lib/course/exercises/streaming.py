"""Checkers: rotated keys that move, room for a chunk, an exit for softmax, and where a dense cache doubles a step."""

from dataclasses import replace

import torch

from lessons_lib.attention.rotary import rotary_tables, rotate
from lessons_lib.course.exercises import Attempt, exercise, expect
from lessons_lib.measure.config import CONFIGS
from lessons_lib.models.decoder import attend


@exercise("16.1")
def evict_rotated(attempt: Attempt) -> None:
    """Evict from rotated keys several times: afterwards every key is rotated by its place."""
    random = torch.Generator().manual_seed(0)
    cos, sin = rotary_tables(replace(CONFIGS["smollm2-135m"], max_position_embeddings=64))
    for kv_heads, sinks, window, steps in [(2, 4, 3, (3, 9, 1)), (1, 0, 5, (8, 2)), (3, 2, 6, (5, 1, 1, 6, 4))]:
        shape = kv_heads, 0, cos.shape[1]
        held = keys = torch.zeros(shape, dtype=torch.float64)  # unrotated, rotated
        for new in steps:
            fresh = torch.randn(kv_heads, new, cos.shape[1], generator=random, dtype=torch.float64)
            place = torch.arange(held.shape[1], held.shape[1] + new)
            held = torch.cat([held, fresh], dim=1)
            keys = torch.cat([keys, rotate(fresh, cos[place], sin[place])], dim=1)
            gone = max(0, held.shape[1] - sinks - window)
            held = torch.cat([held[:, :sinks], held[:, sinks + gone :]], dim=1)
            wanted = rotate(held, cos[: held.shape[1]], sin[: held.shape[1]])
            expect(attempt, keys, sinks, window, cos, sin, equals=wanted, tolerance=1e-6)
            keys = wanted


@exercise("16.2")
def make_room(attempt: Attempt) -> None:
    """The tokens that stay before a chunk is fed, also if the cache is not full or the chunk fills the window."""
    for held, m, sinks, window, stays in [
        ([0, 1, 5, 6, 7], 2, 2, 3, [0, 1, 7]),
        ([0, 1, 5, 6, 7], 3, 2, 3, [0, 1]),
        ([0, 1, 5, 6, 7], 1, 2, 3, [0, 1, 6, 7]),
        ([0, 1, 2, 3], 3, 4, 6, [0, 1, 2, 3]),
        ([0, 1, 2, 3, 4, 5, 6], 5, 4, 6, [0, 1, 2, 3, 6]),
        ([6, 7, 8], 2, 0, 4, [7, 8]),
        ([], 3, 2, 3, []),
    ]:
        expect(attempt, list(held), m, sinks, window, equals=stays)


@exercise("16.3")
def attend_with_exit(attempt: Attempt) -> None:
    """Attention whose softmax has one more score per head; without it, plain attention."""
    random = torch.Generator().manual_seed(0)
    for heads, entries, dim in [(3, 7, 4), (1, 1, 8), (6, 5, 2)]:
        q = torch.randn(heads, 1, dim, generator=random, dtype=torch.float64)
        keys, values = (torch.randn(heads, entries, dim, generator=random, dtype=torch.float64) for _ in range(2))
        none = torch.full((heads,), -torch.inf, dtype=torch.float64)
        expect(attempt, q, keys, values, none, equals=attend(q, keys, values, None))
        # an exit is a key whose score is known, and whose value is zero
        score = torch.randn(heads, generator=random, dtype=torch.float64)
        scores = torch.cat([q @ keys.transpose(1, 2) / dim**0.5, score[:, None, None]], dim=-1)
        nothing = torch.cat([values, torch.zeros(heads, 1, dim, dtype=torch.float64)], dim=1)
        expect(attempt, q, keys, values, score, equals=scores.softmax(-1) @ nothing)


@exercise("16.4")
def twice(attempt: Attempt) -> None:
    """Tokens from which dense caches double the bytes of a step."""
    for name, capacity, batch in [
        ("llama-2-7b", 1024, 1),
        ("llama-2-7b", 1024, 16),
        ("smollm2-135m", 256, 1),
        ("llama-3-8b", 2048, 64),
    ]:
        config = CONFIGS[name]
        each = 4 * config.num_layers * config.num_kv_heads * config.head_dim
        wanted = 2 * capacity + 2 * config.weights / (batch * each)
        expect(attempt, config, capacity, batch, equals=wanted, tolerance=1e-3)
