"""Our decoder with StreamingLLM caches (lesson 16), eager and compiled: texts of any length in constant memory."""

import sys
from collections.abc import Callable, Sequence

import torch

from lessons_lib.attention.rotary import rotary_tables
from lessons_lib.caches.streaming import Streaming, StreamingCache, StreamingPass
from lessons_lib.decoding.draft_tree import ModelInput, ModelOutput
from lessons_lib.decoding.targets.compiled import CompiledTarget
from lessons_lib.decoding.targets.decoder import DecoderTarget
from lessons_lib.models.decoder import Decoder, Segment, States


class StreamingTarget(DecoderTarget):
    """A DecoderTarget whose caches keep the first and the newest tokens of a text.

    streaming: which ones. Texts may have any length: positions are places in the cache. Prompts longer than a chunk are
    fed in chunks. ValueError if the cache has more places than the model has positions.
    """

    offers = frozenset({"states"})  # no layer ranges: all layers of its cache count together

    def __init__(self, decoder: Decoder, tokenizer=None, eos: Sequence[int] = (), streaming: Streaming | None = None):
        super().__init__(decoder, tokenizer, eos)
        self.streaming = Streaming() if streaming is None else streaming
        if self.streaming.positions == "cache":
            most, self.context = self.context, sys.maxsize
            if self.streaming.capacity + self.streaming.chunk > most:
                raise ValueError(
                    f"{self.streaming.capacity} tokens and a chunk of {self.streaming.chunk} exceed the model's {most} "
                    "positions; choose a smaller window"
                )
        self.tables = decoder.cos, decoder.sin
        if self.streaming.keys == "rotated":  # keys are rotated again and again: in float32 or better
            exact = dict(device=self.device, dtype=torch.promote_types(self.dtype, torch.float32))
            self.tables = tuple(table.to(**exact) for table in rotary_tables(decoder.config))

    def new_cache(self, tokens: int) -> StreamingCache:
        """An empty cache. Its size does not depend on the length of the text."""
        c = self.decoder.config
        shape = c.num_layers, c.num_kv_heads, c.head_dim, self.dtype, self.device
        return StreamingCache(*shape, self.streaming, self.tables)

    def run(self, inputs: Sequence[ModelInput]) -> list[ModelOutput]:
        """Run the inputs, those that are longer than a chunk in several forward passes -> the output of each."""
        parts = [chunks(model_input, self.streaming.chunk) for model_input in inputs]
        outputs = [[] for _ in inputs]
        for number in range(max(map(len, parts))):
            left = [i for i, own in enumerate(parts) if number < len(own)]
            for i, output in zip(left, super().run([parts[i][number] for i in left]), strict=True):
                outputs[i].append(output)
        return [joined(own) for own in outputs]

    def forward(self, inputs: Sequence[ModelInput]) -> States:
        """As in DecoderTarget. The caches then count the new tokens."""
        states = super().forward(inputs)
        for model_input in inputs:
            model_input.cache.advance(len(model_input.tokens))
        return states

    def segment(self, model_input: ModelInput) -> Segment:
        """The decoder's form of an input, with positions and mask from its cache."""
        part = model_input.cache.begin(model_input.offsets, model_input.mask)
        return Segment(part.positions, part, part.mask, unrotated=self.streaming.keys == "unrotated")


class CompiledStreamingTarget(CompiledTarget):
    """A CompiledTarget with streaming caches. The ring of slots gives the compiled step its constant shapes.

    streaming: as in StreamingTarget, but with method A only. widths and options: as in CompiledTarget. Prompts run
    eagerly, in chunks. ValueError for the other methods, and for a width above the chunk.
    """

    def __init__(
        self,
        decoder: Decoder,
        tokenizer=None,
        eos: Sequence[int] = (),
        streaming: Streaming | None = None,
        widths: Sequence[int] = (1,),
        **options,
    ):
        super().__init__(decoder, tokenizer, eos, widths=widths, **options)
        self.eager = StreamingTarget(decoder, tokenizer, eos, streaming)
        self.streaming, self.context = self.eager.streaming, self.eager.context
        if (self.streaming.keys, self.streaming.positions) != ("unrotated", "cache"):
            raise ValueError("only unrotated keys at positions of the cache are compiled; use an eager StreamingTarget")
        if max(widths) > self.streaming.chunk:
            raise ValueError(
                f"a width of {max(widths)} exceeds the chunk of {self.streaming.chunk} tokens; compile smaller widths"
            )

    def _run_eagerly(self, model_input: ModelInput) -> ModelOutput:
        return self.eager.run([model_input])[0]

    def _allocate(self, tokens: int) -> StreamingCache:
        return self.eager.new_cache(tokens)

    def _width(self, model_input: ModelInput) -> int | None:
        wide_enough = (width for width in self.widths if len(model_input.tokens) <= width)
        return next(wide_enough, None) if set(model_input.after) <= {"final"} else None

    def _arguments(self, model_input: ModelInput, width: int) -> tuple:
        """Tokens, positions and slots of the new ones, mask, places of the entries, keys and values. Padded with copies
        of the last token, which no other token attends to; the next tokens overwrite them."""
        cache, mask, more = model_input.cache, model_input.mask, width - len(model_input.tokens)
        tokens = torch.tensor(model_input.tokens + model_input.tokens[-1:] * more, device=self.device)
        if mask is not None and more:
            mask = torch.cat([mask, mask[-1:].expand(more, -1)])
            mask = torch.nn.functional.pad(mask, (0, more))
        part = cache.begin(model_input.offsets + model_input.offsets[-1:] * more, mask, fixed=True)
        return tokens, part.positions, part.entries, part.mask, part.places, cache.keys, cache.values

    def _function(self, decoder: Decoder) -> Callable:
        return streaming_step(decoder, self.streaming.sinks)


def streaming_step(decoder: Decoder, sinks: int) -> Callable:
    """One forward pass over the slots of streaming caches, as a function of tensors only, so that it can be compiled.

    The function takes tokens, positions and slots of the new tokens (T,), mask (T, S), places (S,) and per layer keys
    and values (H_kv, slots, d), with S = slots + (T - 1) sinks -> hidden states after the final norm and logits.
    """

    def step(tokens, positions, entries, mask, places, keys: list, values: list):
        slots = torch.arange(keys[0].shape[1], device=tokens.device)
        read = torch.cat([slots, slots[:sinks].repeat(len(tokens) - 1)]) if len(tokens) > 1 else slice(None)
        tables = decoder.cos, decoder.sin
        part = StreamingPass(keys, values, entries, read, positions, places, places, mask, tables)
        final = decoder.final(decoder(tokens, [Segment(positions, part, mask, unrotated=True)]).last)
        return final, decoder.score(final)

    return step


def chunks(model_input: ModelInput, size: int) -> list[ModelInput]:
    """The input in parts of up to `size` tokens. An input with a mask stays whole: its tokens are those of a tree."""
    count = len(model_input.tokens)
    if count <= size or model_input.mask is not None:
        return [model_input]
    parts = []
    for start in range(0, count, size):
        end = min(start + size, count)
        wanted = max(0, end - max(start, count - model_input.wanted))
        parts.append(
            ModelInput(
                model_input.tokens[start:end],
                [offset - start for offset in model_input.offsets[start:end]],
                None,
                model_input.cache,
                wanted,
                model_input.after,
            )
        )
    return parts


def joined(outputs: Sequence[ModelOutput]) -> ModelOutput:
    """One output from those of its chunks."""
    if len(outputs) == 1:
        return outputs[0]
    names = outputs[0].states
    return ModelOutput(
        torch.cat([output.logits for output in outputs]),
        {name: torch.cat([output.states[name] for output in outputs]) for name in names},
    )
