"""Any causal LM of transformers as a target (lesson 01), and the one adapter that touches its caches.

Checked against transformers 5.23: `DynamicCache.crop` takes a count to remove as a negative number and
silently empties a cache that is shorter; there is no gather along the sequence; a 4-D mask passes untouched,
bool for sdpa, additive for eager (which adds a bool mask as 0 and 1 without a word).
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache

from lessons_lib.caches.cache import Cache, unbroken
from lessons_lib.decoding.blocks import Block, Scores
from lessons_lib.decoding.targets.base import Target, Unsupported, eos_ids


class TransformersCache(Cache):
    """Our interface over a DynamicCache, which made without a config has plain layers, all of one length.

    ValueError for entries that shall be kept and are not there.
    """

    def __init__(self):
        self.inner = DynamicCache()

    def length(self, layer: int = -1) -> int:
        return int(self.inner.get_seq_length())

    @property
    def nbytes(self) -> int:
        """Bytes of all keys and values."""
        return sum(layer.keys.nbytes + layer.values.nbytes for layer in self.inner.layers)

    def keep(self, prefix: int, then: Sequence[int] = ()) -> None:
        end, length = prefix + len(then), self.length()
        if end > length:
            raise ValueError(f"{end} entries cannot be kept of {length}")
        if unbroken(prefix, then):
            if end < length:
                self.inner.crop(end - length)
            return
        index = torch.tensor([*range(prefix), *then], device=self.inner.layers[0].keys.device)
        for layer in self.inner.layers:
            layer.keys, layer.values = layer.keys.index_select(-2, index), layer.values.index_select(-2, index)


class TransformersTarget(Target):
    """network: any causal LM of transformers; several rows run one after another, each in its own forward."""

    offers = frozenset({"states"})

    def __init__(self, network, tokenizer=None):
        self.network, self.tokenizer = network.eval(), tokenizer
        self.vocab_size = network.get_output_embeddings().weight.shape[0]
        self.context = getattr(network.config, "max_position_embeddings", None) or 2**31
        self.eos = eos_ids(network, tokenizer)

    def new_cache(self, tokens: int) -> TransformersCache:
        """An empty cache; it grows by itself, so the number of tokens does not matter."""
        return TransformersCache()

    def run(self, blocks: Sequence[Block]) -> list[Scores]:
        """One forward per block -> its scores. IndexError for states after a layer that there is not.

        Unsupported for states after the last layer; for masks beyond a sliding window; and for masks where attention
        is neither "sdpa" nor "eager".
        """
        return [self._run(block) for block in blocks]

    def _run(self, block: Block) -> Scores:
        device, shaped = self.network.device, {}
        if block.mask is not None:
            shaped["position_ids"] = torch.tensor([block.cache.positions(block.offsets)], device=device)
            shaped["attention_mask"] = self._mask(block.mask.to(device))
        out = self.network(
            torch.tensor([block.tokens], device=device),
            past_key_values=block.cache.inner,
            use_cache=True,
            logits_to_keep=block.wanted,
            output_hidden_states=bool(block.after),
            **shaped,
        )
        return Scores(out.logits[0], {name: self._states(out, name, block.wanted) for name in block.after})

    def _states(self, out, name: int | str, wanted: int) -> Tensor:
        """hidden_states[i] is what layer i left behind, except that the last one has passed the final norm."""
        layers = len(out.hidden_states) - 1
        if name == layers:
            raise Unsupported(f"transformers gives layer {layers}'s state only after the final norm: ask for 'final'")
        return out.hidden_states[layers if name == "final" else name][0, -wanted:]

    def _mask(self, allow: Tensor) -> Tensor:
        window = getattr(self.network.config, "sliding_window", None)
        if window and allow.shape[1] > window:
            raise Unsupported(f"tree guesses beyond the sliding window of {window} tokens: use chains with this model")
        return as_attention_mask(allow, self.network.config._attn_implementation, self.network.dtype)


def as_attention_mask(allow: Tensor, implementation: str, dtype: torch.dtype) -> Tensor:
    """allow (T, S) bool -> the (1, 1, T, S) form that an attention implementation of transformers reads.

    Unsupported for other implementations than sdpa and eager.
    """
    if implementation == "sdpa":
        return allow[None, None]
    if implementation != "eager":
        raise Unsupported(f'tree guesses need attn_implementation "sdpa" or "eager", not {implementation!r}')
    return torch.zeros(allow.shape, dtype=dtype, device=allow.device).masked_fill(~allow, torch.finfo(dtype).min)[
        None, None
    ]
