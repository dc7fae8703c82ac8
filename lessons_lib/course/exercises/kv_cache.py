"""Checkers: the next turn of a chat, attention without copies, a cache that forgets, and requests that fit a GPU."""

import torch
from torch.overrides import TorchFunctionMode

from lessons_lib.caches.cache import ContiguousCache
from lessons_lib.caches.sizes import requests_that_fit
from lessons_lib.course.exercises import Attempt, Wrong, exercise, expect
from lessons_lib.measure.config import CONFIGS
from lessons_lib.measure.profiler import peak_bytes
from lessons_lib.models.decoder import Decoder, Segment, attend
from lessons_lib.models.tiny_models import tiny

COPIES = {"repeat", "repeat_interleave", "tile", "scaled_dot_product_attention"}


@exercise("02.1")
def next_turn(attempt: Attempt) -> None:
    """The tokens of a chat without a cache, and nothing computed twice."""
    decoder = Decoder.from_transformers(tiny())
    c = decoder.config
    for prompt, turn, n in [([5, 7, 11], [2, 3], 6), ([1], [4, 4, 4, 9], 3), ([8, 60, 2, 9], [13], 9)]:
        cache, fed = ContiguousCache(c.num_layers, c.num_kv_heads, c.head_dim, torch.float64), []

        def forward(tokens, cache, fed=fed):
            fed.append(len(tokens))
            positions = torch.arange(cache.length(), cache.length() + len(tokens))
            return decoder.logits(decoder(torch.tensor(tokens), [Segment(positions, cache)]).last[-1])

        # the first turn, whose newest token is not in the cache
        ids = decoded(decoder, prompt, 4)
        forward(ids[:-1], cache)
        fed.clear()
        expect(attempt, forward, cache, list(ids), turn, n, equals=decoded(decoder, ids + turn, n))
        if sum(fed) != len(turn) + n:
            raise Wrong(f"The tokens are right, but {sum(fed)} were computed where {len(turn) + n} are enough.")


@exercise("02.2")
def attend_grouped(attempt: Attempt) -> None:
    """Grouped-query attention of the newest tokens, against the decoder's own, without copies of keys and values."""
    random = torch.Generator().manual_seed(0)
    for heads, kv_heads, new, entries, dim in [(9, 3, 1, 7, 4), (4, 4, 5, 5, 8), (8, 1, 3, 6, 2), (6, 2, 1, 1, 4)]:
        q = torch.randn(heads, new, dim, generator=random, dtype=torch.float64)
        keys, values = torch.randn(2, kv_heads, entries, dim, generator=random, dtype=torch.float64)
        wanted = attend(q, keys, values, None)
        with _NoCopies():
            expect(attempt, q, keys, values, equals=wanted)
    # copies by other functions are seen in memory: scores and output are small against the keys here
    q, keys, values = torch.zeros(32, 1, 64), torch.zeros(4, 512, 64), torch.zeros(4, 512, 64)
    if peak_bytes(lambda: attempt(q, keys, values)) >= len(q) * keys[0].nbytes:
        raise Wrong("The results are right, but keys or values are copied for every query head that shares them.")


@exercise("02.3")
def append_and_forget(attempt: Attempt) -> None:
    """The first `sinks` and the newest `window` entries, in order, each once."""
    keys = torch.arange(6.0).view(1, 6, 1)
    new = torch.tensor([6.0, 7.0]).view(1, 2, 1)
    for sinks, window, kept in [(2, 3, [0, 1, 5, 6, 7]), (0, 2, [6, 7]), (1, 20, range(8)), (3, 5, range(8))]:
        expect(attempt, keys, new, sinks, window, equals=torch.tensor([float(k) for k in kept]).view(1, -1, 1))


@exercise("02.4")
def requests(attempt: Attempt) -> None:
    """Requests beside the weights: shared heads, a window, and a context that ends."""
    for name, weights, memory, tokens in [
        ("llama-3-8b", 16.1e9, 24e9, 8192),
        ("mistral-7b-v0.1", 14.5e9, 24e9, 8192),
        ("mistral-7b-v0.1", 14.5e9, 24e9, 1000),
        ("gemma-2b", 5e9, 24e9, 2048),
        ("opt-13b", 25.7e9, 24e9, 2048),
    ]:
        expect(
            attempt,
            CONFIGS[name],
            weights,
            memory,
            tokens,
            equals=requests_that_fit(memory, weights, CONFIGS[name], tokens),
        )
    expect(attempt, CONFIGS["llama-2-7b"], 13.5e9, 24e9, 8192, equals=0)


class _NoCopies(TorchFunctionMode):
    """Refuses torch's functions that copy shared heads, or that do the exercise."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if getattr(func, "__name__", "") in COPIES:
            raise Wrong(
                f"{func.__name__} is not allowed here: it copies keys and values, or hides how they are shared."
            )
        return func(*args, **(kwargs or {}))


def decoded(decoder: Decoder, ids: list[int], n: int) -> list[int]:
    """ids and n greedy tokens, without a cache."""
    for _ in range(n):
        ids = [*ids, int(decoder.read(ids)[-1].argmax())]
    return ids
