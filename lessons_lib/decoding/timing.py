"""Requests and batched steps to put a clock to (lessons 00, 01, 05, 08): our loop's, and transformers' as its peer."""

from collections.abc import Callable, Mapping, Sequence
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

ROOM = 128  # decode steps that a batch of ours has buffers for


def overhead_proxy(shape: ModelConfig, dtype: str, device: str = "cpu", context: int = 1024) -> DecoderTarget:
    """A random decoder with this shape's layers and so its operators, but so narrow that bytes and FLOPs vanish:
    what its steps take is overhead. KeyError for a dtype that is not of machine.DTYPES."""
    network = tiny(shape.num_layers, DTYPES[dtype], width=32, context=context)
    return DecoderTarget(Decoder.from_transformers(network.to(device)))


def launch_times(
    shape: ModelConfig, dtype: str, cached: int, device: str = "cpu", repeats: int = 5
) -> dict[str, float]:
    """{"transformers", "decoder", "compiled"}: the overhead of a step in seconds, what it takes beside bytes and FLOPs.

    Median times of the steps of twins after `cached` tokens, in turn: transformers' and ours, both eager, and ours
    compiled, its matmuls left to the library, so that they are calls as in a step whose weights matter. Errors as
    `overhead_proxy`.
    """
    theirs, ours = (
        TransformersTarget(tiny(shape.num_layers, DTYPES[dtype]).to(device)),
        overhead_proxy(shape, dtype, device),
    )
    compiled = CompiledTarget(ours.decoder, context=cached + ROOM, matmul="library", regional=True)
    targets = {"transformers": theirs, "decoder": ours, "compiled": compiled}
    steps = {name: repeatable_step(of, [1] * cached) for name, of in targets.items()}
    return {name: samples.median for name, samples in in_turn(steps, device, repeats).items()}


@torch.no_grad()
def products_in_cache(decoder: Decoder, repeats: int = 15) -> float:
    """Seconds that the products of one row take in all layers if no weight has to come from memory: what unpacking and
    arithmetic allow. The first layer's matrices, each time and again, for all; not the head, which no cache holds."""
    first, device = decoder.layers[0], decoder.norm.device
    total, count = 0.0, 20
    for linear in (first.qkv, first.out, first.gate_up, first.down):
        x = torch.ones(1, linear.in_features, dtype=decoder.norm.dtype, device=device)
        again = lambda x=x, of=linear: [of(x) for _ in range(count)]  # noqa: E731
        total += timed(again, device, repeats, warmup=1).median / count
    return total * len(decoder.layers)


def time_request(target, prompt: Sequence[int], new: int) -> Timeline:
    """When each of exactly `new` greedy tokens after `prompt` (ids) could be read, in seconds; no token ends the text.

    Errors as `generate`.
    """
    start, times = perf_counter(), []
    generate(target, prompt, max_new_tokens=new, min_new_tokens=new, on_tokens=lambda _: times.append(perf_counter()))
    return Timeline(start, times)


def time_transformers(network, prompt: Sequence[int], new: int) -> Timeline:
    """The same through transformers' own generate. Errors as `by_transformers`, here and below."""
    return clocked_transformers(network, prompt, new)[1]


def clocked_transformers(network, prompt: Sequence[int], new: int, **options) -> tuple[list[int], Timeline]:
    """The tokens, too. options: further ones of generate; not an assistant's, whose tokens come in heaps."""
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
    """Time whole requests in turn, every prompt (ids) by every method: {(method, prompt): seconds}, and what each gave
    in the run that took the median time (the shorter of two).

    makers: make a request's proposer, None for plain decoding, inside the time. options, errors: those of `generate`.
    There is no warm-up: the caller has run the target before.
    """
    runs = {(method, name): [] for name in prompts for method in makers}

    def request(method: str, name: str) -> Callable[[], None]:
        return lambda: runs[method, name].append(generate(target, prompts[name], makers[method](), **options))

    took = in_turn({key: request(*key) for key in runs}, device, repeats, warmup=0)
    return took, {key: outs[middle(took[key].times)] for key, outs in runs.items()}


def middle(times: Sequence[float]) -> int:
    """Which of the times, at least one, is their median, or the shorter of the two about it."""
    return sorted(range(len(times)), key=times.__getitem__)[(len(times) - 1) // 2]


def seen_prefill(prompt: Sequence[int], timeline: Timeline) -> list[StepStats]:
    """The one Step of a trace that is known of another engine: its prefill, as long as the first token took."""
    return [StepStats(len(prompt), len(prompt), committed=1, is_prefill=True, t_total=timeline.ttft)]


@torch.no_grad()
def batched_step(target, prompt: Sequence[int], batch: int) -> Callable[[], list[list[int]]]:
    """A decode step of `batch` equal requests, packed into one forward pass, their prompts fed already; call it again
    and again: each call adds a token to every request, and gives these. Errors as `generate`."""
    room = min(ROOM, target.context - len(prompt))
    rows = [new_sequence(target, prompt, None, None, room, room) for _ in range(batch)]
    step(target, rows)
    return torch.no_grad()(lambda: step(target, rows))


@torch.no_grad()
def batched_transformers_step(network, prompt: Sequence[int], batch: int) -> Callable[[], list[int]]:
    """The same through transformers' forward with a batch dimension and a dynamic cache."""
    cache = DynamicCache()

    def forward(ids: torch.Tensor) -> torch.Tensor:
        return network(ids, past_key_values=cache, use_cache=True, logits_to_keep=1).logits[:, -1].argmax(-1)

    newest = [forward(torch.tensor([list(prompt)] * batch, device=network.device))]

    def advance() -> list[int]:
        newest[0] = forward(newest[0][:, None])
        return newest[0].tolist()

    return torch.no_grad()(advance)
