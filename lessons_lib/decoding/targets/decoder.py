"""Our decoder as an eager target (lessons 02, 03): all sequences packed into one forward pass."""

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from lessons_lib.caches.cache import ContiguousCache
from lessons_lib.decoding.draft_tree import ModelInput, ModelOutput
from lessons_lib.decoding.targets.base import Target
from lessons_lib.models.decoder import Decoder, Segment, States


class DecoderTarget(Target):
    """Runs our decoder. decoder: from `Decoder.from_transformers(...)`. tokenizer, eos: those of the original model."""

    offers = frozenset({"states"})

    def __init__(self, decoder: Decoder, tokenizer=None, eos: Sequence[int] = ()):
        self.decoder, self.tokenizer, self.eos = decoder, tokenizer, tuple(eos)
        self.vocab_size, self.context = decoder.config.vocab_size, decoder.config.max_position_embeddings
        self.device, self.dtype = decoder.embedding.weight.device, decoder.embedding.weight.dtype

    def new_cache(self, tokens: int) -> ContiguousCache:
        """An empty cache with room for `tokens` tokens. It grows if draft tokens need more."""
        c = self.decoder.config
        return ContiguousCache(c.num_layers, c.num_kv_heads, c.head_dim, self.dtype, self.device, capacity=tokens)

    def run(self, inputs: Sequence[ModelInput]) -> list[ModelOutput]:
        """Run one packed forward pass over all inputs -> the output of each.

        CacheFullError if a cache of fixed capacity is full.
        """
        # pack the tokens of all sequences and run the layers
        tokens = torch.tensor([token for model_input in inputs for token in model_input.tokens], device=self.device)
        layers = [name for model_input in inputs for name in model_input.after if name != "final"]
        states = self.forward(tokens, inputs, layers)
        # final norm and LM head for the wanted tokens only, then split by sequence
        ends, counts = (
            accumulate(len(model_input.tokens) for model_input in inputs),
            [model_input.wanted for model_input in inputs],
        )
        rows = [slice(end - count, end) for end, count in zip(ends, counts, strict=True)]
        final = self.decoder.final(torch.cat([states.last[wanted] for wanted in rows]))
        parts = zip(inputs, rows, final.split(counts), self.decoder.score(final).split(counts), strict=True)
        return [
            ModelOutput(
                logits, {name: normed if name == "final" else states.after[name][wanted] for name in model_input.after}
            )
            for model_input, wanted, normed, logits in parts
        ]

    def forward(self, tokens: Tensor, inputs: Sequence[ModelInput], layers: Sequence[int]) -> States:
        """Run the layers over the packed tokens (T,) of all inputs -> states after the last layer and `layers`."""
        return self.decoder(tokens, [self.segment(model_input) for model_input in inputs], after=layers)

    def segment(self, model_input: ModelInput) -> Segment:
        """The decoder's form of an input: positions (T,), its cache, mask (T, S + T) or None."""
        positions = torch.tensor(model_input.cache.positions(model_input.offsets), device=self.device)
        return Segment(
            positions, model_input.cache, None if model_input.mask is None else model_input.mask.to(self.device)
        )
