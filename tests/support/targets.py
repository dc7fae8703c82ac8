"""One network as either target, what its caches hold, and sequences that it decodes together."""

import pytest
import torch
from support.oracle import N

from lessons_lib.caches.cache import ContiguousCache, StaticCache
from lessons_lib.decoding.draft_tree import plain_input
from lessons_lib.decoding.generate import new_sequence, step
from lessons_lib.decoding.sampling import Greedy
from lessons_lib.decoding.sequence import Sequence
from lessons_lib.decoding.targets import DecoderTarget, TransformersTarget
from lessons_lib.models.decoder import Decoder


def decoder_target(network, eos=()) -> DecoderTarget:
    return DecoderTarget(Decoder.from_transformers(network), eos=eos)


class Tight(DecoderTarget):
    """Its caches hold `capacity` entries and no more."""

    def __init__(self, network, capacity: int):
        super().__init__(Decoder.from_transformers(network))
        self.capacity = capacity

    def new_cache(self, tokens: int) -> StaticCache:
        c = self.decoder.config
        return StaticCache(c.num_layers, c.num_kv_heads, c.head_dim, self.dtype, capacity=self.capacity)


TARGETS = [pytest.param(TransformersTarget, id="transformers"), pytest.param(decoder_target, id="decoder")]
targets = pytest.mark.parametrize("target", TARGETS)


def entries(cache) -> list[torch.Tensor]:
    """Keys of every layer, then values, each (H_kv, S, d)."""
    if isinstance(cache, ContiguousCache):
        return [buffer[:, : cache.length()] for buffer in cache.keys + cache.values]
    return [layer.keys[0] for layer in cache.inner.layers] + [layer.values[0] for layer in cache.inner.layers]


@torch.no_grad()
def assert_holds(cache, ids, target) -> None:
    """The cache's entries are those that one pass of the target over these ids leaves."""
    fresh = target.new_cache(len(ids))
    target.run([plain_input(ids, fresh)])
    for found, expected in zip(entries(cache), entries(fresh), strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)


UNEQUAL = [[5, 80, 3], [61, 17, 42, 9, 9, 9, 1], [7]]  # prompts


@torch.no_grad()
def together(target, proposers) -> list[Sequence]:
    """The finished sequences of UNEQUAL, a proposer each, in packed passes; the second prompt is fed in chunks of 3."""
    seqs = [new_sequence(target, prompt, by, Greedy(), N) for prompt, by in zip(UNEQUAL, proposers, strict=True)]
    while unfinished := [seq for seq in seqs if seq.finish_reason is None]:
        seqs[1].num_scheduled_tokens = None if seqs[1].output_ids else 3  # of the prompt: draft tokens would count, too
        step(target, unfinished)
    return seqs
