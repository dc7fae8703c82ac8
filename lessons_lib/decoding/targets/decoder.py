"""Targets (lessons 01 to 03, 06): the interface of the model that the decoding loop runs, and our decoder behind it.

Our decoder runs eagerly here, all sequences packed into one forward pass. Other targets have a file each.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import accumulate, pairwise

import torch

from lessons_lib.caches.cache import Cache, ContiguousCache
from lessons_lib.decoding.draft_tree import ModelInput, ModelOutput
from lessons_lib.models.decoder import Decoder, Segment, States


class Unsupported(ValueError):
    """The target lacks an ability that a proposer needs."""


class Target(ABC):
    """Runs forward passes over model inputs and returns their logits.

    offers: optional abilities: "states" (returns hidden states beside logits), "layer ranges" (runs the first layers
    alone, and inputs that enter at a later layer). tokenizer: may be None.
    context: maximum number of tokens of a text. eos: ids of the end tokens.
    """

    device = torch.device("cpu")

    offers: frozenset[str] = frozenset()
    tokenizer = None
    vocab_size: int
    context: int
    eos: tuple[int, ...]

    @abstractmethod
    def new_cache(self, tokens: int) -> Cache:
        """An empty cache of one sequence, for a text of `tokens` tokens including the new ones."""

    @abstractmethod
    def run(self, inputs: Sequence[ModelInput]) -> list[ModelOutput]:
        """Run a forward pass over all inputs -> the output of each.

        Appends the keys and values of all input tokens to the caches. `Cache.keep` then drops the rejected tokens.
        Unsupported or CacheFullError, both ValueErrors, if this target cannot run an input.
        """

    def check(self, proposer) -> None:
        """Raise Unsupported if the proposer needs an ability that the target does not offer."""
        if missing := proposer.needs - self.offers:
            raise Unsupported(
                f"{type(proposer).__name__} needs {', '.join(sorted(missing))}, which {type(self).__name__} does not "
                'offer; use model.target(kind="decoder")'
            )


class DecoderTarget(Target):
    """Runs our decoder. decoder: from `Decoder.from_transformers(...)`. tokenizer, eos: those of the original model."""

    offers = frozenset({"states", "layer ranges"})

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
        # pack all sequences, those that enter at a later layer last, and run the layers
        order = sorted(range(len(inputs)), key=lambda i: self.rank(inputs[i]))
        packed = [inputs[i] for i in order]
        states = self.forward(packed)
        # final norm and LM head for the wanted tokens only, then split by sequence
        counts = [model_input.wanted for model_input in packed]
        ends = accumulate(len(model_input.tokens) for model_input in packed)
        rows = [slice(end - count, end) for end, count in zip(ends, counts, strict=True)]
        final = self.decoder.final(torch.cat([states.last[wanted] for wanted in rows]))
        parts = zip(order, rows, final.split(counts), self.decoder.score(final).split(counts), strict=True)
        outputs = {
            i: ModelOutput(
                logits, {name: normed if name == "final" else states.after[name][wanted] for name in inputs[i].after}
            )
            for i, wanted, normed, logits in parts
        }
        return [outputs[i] for i in range(len(inputs))]

    def rank(self, model_input: ModelInput) -> int:
        """Sort key for the order in which inputs are packed."""
        return model_input.first_layer

    def forward(self, inputs: Sequence[ModelInput]) -> States:
        """Run the layers over the packed inputs -> states after the last layer and after the layers they ask for.

        Inputs that bring states wait until their first layer and then join the others.
        """
        segments, last = self.segments(inputs), self.decoder.config.num_layers
        new = [token for model_input in inputs if model_input.states is None for token in model_input.tokens]
        tokens = torch.tensor(new, device=self.device)
        after = [name for model_input in inputs for name in model_input.after if name != "final"]
        states = States(None)
        for start, end in pairwise([*sorted({model_input.first_layer for model_input in inputs}), last]):
            joining = [m.states for m in inputs if m.states is not None and m.first_layer == start]
            if joining:
                states.last = torch.cat(joining if states.last is None else [states.last, *joining])
            if start < last:  # at `last` only the head is left to run
                running = segments[: len(segments) - sum(m.first_layer > start for m in inputs)]
                ran = self.decoder(tokens, running, layers=range(start, end), states=states.last, after=after)
                states = States(ran.last, states.after | ran.after)
        return states

    def segments(self, inputs: Sequence[ModelInput]) -> list[Segment]:
        """The segments of packed inputs, in their order."""
        return [self.segment(model_input) for model_input in inputs]

    def segment(self, model_input: ModelInput) -> Segment:
        """The decoder's form of an input: positions (T,), its cache, mask (T, S + T) or None."""
        positions = torch.tensor(model_input.cache.positions(model_input.offsets), device=self.device)
        return Segment(
            positions, model_input.cache, None if model_input.mask is None else model_input.mask.to(self.device)
        )
