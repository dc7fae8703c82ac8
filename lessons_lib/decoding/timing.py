"""Timing requests and batched steps (lessons 00, 01, 05, 08), with our loop and with transformers as its baseline."""

from collections.abc import Callable, Mapping, Sequence
from statistics import median_low
from time import perf_counter
from typing import Any

import torch
from transformers import DynamicCache

from lessons_lib.decoding.generate import Output, StepStats, generate, new_sequence, step
from lessons_lib.decoding.peers import by_transformers
from lessons_lib.decoding.probing import repeatable_step
from lessons_lib.decoding.proposers import Proposer
from lessons_lib.decoding.targets import CompiledTarget, DecoderTarget, TransformersTarget
from lessons_lib.measure.clock import Samples, Timeline, TokenClock, in_turn, timed
from lessons_lib.measure.config import ModelConfig
from lessons_lib.measure.machine import DTYPES
from lessons_lib.models import tiny
from lessons_lib.models.decoder import Decoder

ROOM = 128  # decode steps that the cache of a batch has room for


def overhead_proxy(shape: ModelConfig, dtype: str, device: str = "cpu", context: int = 1024) -> DecoderTarget:
    """A random decoder with as many layers, and so as many operators, as this shape, but very narrow.

    Its bytes and FLOPs are negligible, so the time of its steps is overhead. dtype: a name in machine.DTYPES.
    """
    network = tiny(shape.num_layers, DTYPES[dtype], width=32, context=context)
    return DecoderTarget(Decoder.from_transformers(network.to(device)))


def launch_times(
    shape: ModelConfig, dtype: str, cached: int, device: str = "cpu", repeats: int = 5
) -> dict[str, float]:
    """Launch overhead of a step in seconds: {"transformers": ..., "decoder": ..., "compiled": ...}.

    Medians of one-token steps of overhead proxies after `cached` tokens, timed in turn: transformers eager, our decoder
    eager, and our decoder compiled.
    """
    theirs, ours = (
        TransformersTarget(tiny(shape.num_layers, DTYPES[dtype]).to(device)),
        overhead_proxy(shape, dtype, device, context=cached + ROOM),
    )
    compiled = CompiledTarget(ours.decoder, context=cached + ROOM, regional=True)
    targets = {"transformers": theirs, "decoder": ours, "compiled": compiled}
    # equal steps on all three, timed in turn
    steps = {name: repeatable_step(of, [1] * cached) for name, of in targets.items()}
    return {name: samples.median for name, samples in in_turn(steps, device, repeats).items()}


@torch.no_grad()
def matmuls_in_cache(decoder: Decoder) -> float:
    """Seconds for the GEMVs of one token in all layers if all weights are in the CPU's cache.

    This is the limit set by unpacking and arithmetic, without memory traffic. Each matrix of the first layer is used
    again and again and stands for those of all layers. The LM head is left out, because it fits into no cache.
    """
    first, device = decoder.layers[0], decoder.norm.device
    total, count = 0.0, 20
    for linear in (first.qkv, first.out, first.gate_up, first.down):
        x = torch.ones(1, linear.in_features, dtype=decoder.norm.dtype, device=device)
        again = lambda x=x, of=linear: [of(x) for _ in range(count)]  # noqa: E731
        total += timed(again, device, repeats=15, warmup=1).median / count
    return total * len(decoder.layers)


def time_request(target, prompt: Sequence[int], new: int) -> Timeline:
    """Time `generate` -> when each of exactly `new` greedy tokens after `prompt` (ids) was available, in seconds.

    No end token ends the text.
    """
    start, times = perf_counter(), []
    generate(target, prompt, max_new_tokens=new, min_new_tokens=new, on_tokens=lambda _: times.append(perf_counter()))
    return Timeline(start, times)


def time_transformers(network, prompt: Sequence[int], new: int) -> Timeline:
    """As `time_request`, with transformers' own generate."""
    return clocked_transformers(network, prompt, new)[1]


def clocked_transformers(network, prompt: Sequence[int], new: int, **options) -> tuple[list[int], Timeline]:
    """As `time_transformers` -> (new ids, timeline).

    options: further arguments of generate, but not assisted generation, which emits several tokens at once.
    """
    clock = TokenClock()
    ids = by_transformers(network, prompt, new, streamer=clock, **options)
    return ids, clock.timeline()


def time_requests(
    target,
    prompts: Mapping[str, Sequence[int]],
    makers: Mapping[str, Callable[[], Proposer | None]],
    device: Any,
    repeats: int,
    **options,
) -> tuple[dict[tuple[str, str], Samples], dict[tuple[str, str], Output]]:
    """Time whole requests in turn, for every method and prompt (ids) -> ({(method, prompt): seconds}, outputs).

    outputs: for each (method, prompt) the output of its run of median time (the lower median if there are two).
    makers: {method: function that makes a proposer, or None for plain decoding}; making it is part of the time.
    options: those of `generate`. There is no warm-up, so run the target once before.
    """
    runs = {(method, name): [] for name in prompts for method in makers}

    def request(method: str, name: str) -> Callable[[], None]:
        return lambda: runs[method, name].append(generate(target, prompts[name], makers[method](), **options))

    took = in_turn({key: request(*key) for key in runs}, device, repeats, warmup=0)
    medians = {key: samples.times.index(median_low(samples.times)) for key, samples in took.items()}
    return took, {key: outs[medians[key]] for key, outs in runs.items()}


def seen_prefill(prompt: Sequence[int], timeline: Timeline) -> list[StepStats]:
    """The stats of another engine, of which only the prefill is known: one step as long as the time to first token."""
    return [StepStats(len(prompt), len(prompt), committed=1, is_prefill=True, t_total=timeline.ttft)]


@torch.no_grad()
def batched_step(target, prompt: Sequence[int], batch: int) -> Callable[[], list[list[int]]]:
    """A function that runs a decode step of `batch` equal requests, packed into one forward pass -> the new tokens.

    The prompts are fed beforehand. Each call adds a token to every request, up to ROOM tokens in all.
    """
    room = min(ROOM, target.context - len(prompt))
    seqs = [new_sequence(target, prompt, None, None, room, room) for _ in range(batch)]
    step(target, seqs)
    return torch.no_grad()(lambda: step(target, seqs))


@torch.no_grad()
def batched_transformers_step(network, prompt: Sequence[int], batch: int) -> Callable[[], list[int]]:
    """As `batched_step`, with a transformers model, a batch dimension and a dynamic cache."""
    cache = DynamicCache()

    def forward(ids: torch.Tensor) -> torch.Tensor:
        return network(ids, past_key_values=cache, use_cache=True, logits_to_keep=1).logits[:, -1].argmax(-1)

    newest = [forward(torch.tensor([list(prompt)] * batch, device=network.device))]

    def advance() -> list[int]:
        newest[0] = forward(newest[0][:, None])
        return newest[0].tolist()

    return torch.no_grad()(advance)
