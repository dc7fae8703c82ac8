"""One cost model (every lesson): the seconds of a forward pass, predicted before anything is timed.

    seconds = max(bytes / bandwidth, FLOPs / rate) + overhead

Bytes and FLOPs follow from a ModelConfig; the rates come from `machine.probe` or `machine.calibrate`. The formula has
three forms:

- `limit`, `predict_decode_step`: one pass, from the probe's rates
- `StepCost`: a sequence that decodes w tokens per pass, by the width curve v(w): speculation, trees, the ladder
- `LinearCost`, `RooflineCost`: a batch, from its `Load`: serving and its simulator

A multiply-add is 2 FLOPs. Units: bytes/s, FLOP/s, seconds. S cached tokens, T tokens in one pass, b sequences.
Ignored: norms, activations, embeddings (< 1%).
Sources: Williams et al. 2009 (roofline); Pope et al. 2022, "Efficiently scaling transformer inference"; Leviathan et
al. 2022 (arXiv 2211.17192) for chains whose tokens are accepted independently with probability alpha.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from lessons_lib.measure.config import ELEMENT_BYTES, ModelConfig

if TYPE_CHECKING:
    from lessons_lib.measure.machine import Hardware

# --- Work: FLOPs and bytes of a forward pass


def flops(config: ModelConfig, tokens: int, logits: int, pairs: int) -> int:
    """FLOPs of a forward pass: 2·N_lay·tokens + 2·N_head·logits + 4·H·d·pairs.

    logits: positions whose logits are computed; pairs: (query, key) pairs, summed over layers.
    """
    matrices = 2 * config.layer_weights * tokens + 2 * config.head_weights * logits
    return matrices + 4 * config.num_heads * config.head_dim * pairs


def flops_decode(config: ModelConfig, batch: int = 1, cached: int = 0) -> int:
    """FLOPs of one decode step with `cached` tokens per sequence: b(2N + 4·L·H·d·S)."""
    return flops(config, batch, batch, batch * config.kept(cached))


def flops_prefill(config: ModelConfig, tokens: int) -> int:
    """FLOPs of one pass over T `tokens` with a causal kernel: 2·N_lay·T + 2·N_head + 4·L·H·d·T(T+1)/2.

    Only the last token's logits are computed. A dense (eager) kernel also computes the masked pairs, T² instead of
    T(T+1)/2.
    """
    return flops(config, tokens, 1, config.attended(tokens))


def flops_generate(config: ModelConfig, prompt: int, new: int, cached: bool = True) -> int:
    """FLOPs of generating `new` tokens after `prompt` tokens. The first new token comes from the prefill.

    Without a cache, each step is a prefill of the whole text so far. The cost of the matrices is linear in the length
    with a cache and quadratic without; that of attention is quadratic with a cache and cubic without.
    """
    lengths = range(prompt + 1, prompt + new)  # the last new token is never processed
    steps = (flops_decode(config, 1, s) if cached else flops_prefill(config, s) for s in lengths)
    return flops_prefill(config, prompt) + sum(steps)


def bytes_decode(
    config: ModelConfig, batch: int = 1, cached: int = 0, weight_bytes: float = 2, cache_bytes: float = 2
) -> float:
    """Bytes that one decode step must read, W + b·S·k: the weights W = N·e_w per batch, the cache per sequence."""
    return config.weights * weight_bytes + batch * config.kv_elements(cached) * cache_bytes


def bytes_prefill(config: ModelConfig, tokens: int, weight_bytes: float = 2, cache_bytes: float = 2) -> float:
    """Bytes that one prefill must move: W read, T·k written."""
    return config.weights * weight_bytes + config.kv_elements(tokens) * cache_bytes


def cache_element_bytes(dtype: str) -> float:
    """Bytes per element of a KV cache used with weights of this dtype. Quantized weights use a 16-bit cache."""
    return max(2, ELEMENT_BYTES[dtype])


# --- The roofline: from work to seconds


def limit(flops: float, moved: float, hardware: Hardware, dtype: str) -> float:
    """Lower bound in seconds for `flops` and `moved` bytes: the best rates of this machine, fully overlapped."""
    reading = max(hardware.read_bandwidth, *hardware.matvec_bandwidth.values())
    return max(moved / reading, flops / hardware.matmul_flops[dtype])


def predict_decode_step(config: ModelConfig, hardware: Hardware, dtype: str) -> float:
    """Predict the seconds of one decode step, its cache empty, from the rates that were measured in this dtype."""
    moved = bytes_decode(config, weight_bytes=ELEMENT_BYTES[dtype])
    return max(moved / hardware.matvec_bandwidth[dtype], flops_decode(config) / hardware.matmul_flops[dtype])


# --- One sequence, several tokens a pass: the width curve, speculation, the ladder

WidthCurve = Mapping[int, float] | Callable[[int], float] | None


def width_curve(took: Mapping[int, Any]) -> dict[int, float]:
    """Width curve {w: v(w)} from {w: Samples} timed in turn: the median, over the rounds, of the time of w tokens over
    that of the narrowest width, one token.

    The ratio is taken within a round, because a slow moment slows all widths.
    """
    one = took[min(took)].times
    return {w: median(t / t_1 for t, t_1 in zip(samples.times, one, strict=True)) for w, samples in took.items()}


def width_cost(v: WidthCurve) -> Callable[[int], float]:
    """The width curve as a function, interpolated linearly; beyond the last width its last segment is extended.

    None: every width costs 1.
    """
    if v is None:
        return lambda width: 1.0
    return v if callable(v) else partial(_interpolate, sorted(v.items()))


def padded_cost(v: Mapping[int, float]) -> Callable[[int], float]:
    """The width curve of a target compiled for the widths in v, which pads to the next one; inf beyond the last."""
    return lambda width: min((cost for compiled, cost in v.items() if compiled >= width), default=math.inf)


def _interpolate(points: list[tuple[int, float]], width: int) -> float:
    widths, costs = zip(*points, strict=True)
    if width <= widths[-1] or len(points) == 1:
        return float(np.interp(width, widths, costs))
    return costs[-1] + (width - widths[-1]) * (costs[-1] - costs[-2]) / (widths[-1] - widths[-2])


@dataclass(frozen=True)
class StepCost:
    """Seconds of a sequence's decode steps: ((weights + cache) / bandwidth + launch) v(w) + host + draft passes.

    With the default values a one-token pass costs 1 and everything else is in units of it, so `draft` is c.
    weight_bytes: read by every pass, whatever its width. kv_bytes: of one cached token. slots: tokens that every pass
    attends to (None: the cached tokens). bandwidth: bytes/s of a one-token pass. launch: launch overhead of a pass in
    seconds; host: seconds between two passes; draft: seconds of one draft pass. v: width curve of the whole pass.
    """

    weight_bytes: float = 1.0
    kv_bytes: float = 0.0
    bandwidth: float = 1.0
    slots: int | None = None
    launch: float = 0.0
    v: WidthCurve = None
    host: float = 0.0
    draft: float = 0.0

    def moved(self, cached: int) -> float:
        """Bytes that a one-token pass reads with `cached` tokens in the cache."""
        return self.weight_bytes + self.kv_bytes * (cached if self.slots is None else self.slots)

    def forward(self, cached: int = 0, tokens: int = 1) -> float:
        """Seconds of one forward pass over `tokens` tokens."""
        return (self.moved(cached) / self.bandwidth + self.launch) * width_cost(self.v)(tokens)

    def step(self, cached: int = 0, tokens: int = 1, drafts: int = 0) -> float:
        """Seconds of a whole step: `drafts` draft passes, one forward pass of the target, and the host overhead."""
        return drafts * self.draft + self.forward(cached, tokens) + self.host

    def steps(self, stats: Iterable[Any]) -> float:
        """Seconds of all steps in `stats` (a StepStats per step, from `generate` or a replay), including a prefill."""
        return sum(self.step(step.length_before, step.num_input_tokens, step.draft_calls) for step in stats)

    def decoding(self, stats: Iterable[Any]) -> float:
        """Seconds of all steps in `stats` except the prefill."""
        return self.steps(step for step in stats if not step.is_prefill)

    def speed(self, *traces: Sequence[Any]) -> float:
        """Decode speed in tokens per second over several sequences' stats, prefill excluded; NaN without a decode step.

        With a one-token pass as the unit this is the speedup over plain decoding.
        """
        tokens = sum(step.committed for stats in traces for step in stats if not step.is_prefill)
        return tokens / sum(self.decoding(stats) for stats in traces) if tokens else math.nan


def expected_tokens(alpha: float, gamma: int) -> float:
    """E[N]: tokens committed per step, bonus token included, (1 - alpha^(gamma+1)) / (1 - alpha)."""
    if not 0 <= alpha <= 1 or gamma < 0:
        raise ValueError(f"0 <= alpha <= 1 and gamma >= 0 are needed, not alpha={alpha} and gamma={gamma}")
    return sum(alpha**i for i in range(gamma + 1))  # the sum itself: alpha = 1 is no special case


def walltime_factor(alpha: float, gamma: int, c: float, v: WidthCurve = None) -> float:
    """W: speedup over plain decoding, E[N] / (gamma c + v(gamma + 1)). c: a draft pass over a one-token target pass."""
    return expected_tokens(alpha, gamma) / StepCost(v=v, draft=c).step(tokens=gamma + 1, drafts=gamma)


def best_gamma(alpha: float, c: float, v: WidthCurve = None, most: int = 32) -> int:
    """The draft length from 0 to `most` with the highest W; 0 where no length beats plain decoding (W = 1)."""
    v = width_cost(v)
    factors = [1.0, *(walltime_factor(alpha, gamma, c, v) for gamma in range(1, most + 1))]
    return factors.index(max(factors))  # the shortest of equally good lengths


def break_even(c: float, v: WidthCurve = None, most: int = 32) -> float:
    """The lowest alpha above which a draft length up to `most` pays; inf if none does. Equals c where v is 1."""
    v, low, high = width_cost(v), 0.0, 1.0
    if not best_gamma(1.0, c, v, most):
        return math.inf
    for _ in range(50):  # W grows with alpha, so bisection finds the one crossing
        middle = (low + high) / 2
        low, high = (low, middle) if best_gamma(middle, c, v, most) else (middle, high)
    return high


def early_exit_cost(
    config: ModelConfig, exit_layer: int, v: WidthCurve = None, vocabulary: int | None = None
) -> StepCost:
    """Cost of self-speculative steps, in one-token passes: gamma c + s + (1 - s) v(gamma + 1) with gamma draft tokens.

    s: share of the first `exit_layer` layers in all weights. c: that of these layers and the head, which draft. The
    last draft token runs through the early layers alone, too; only the later layers and the head run the wide pass.
    v: width curve of a pass of all layers. vocabulary: rows that the head reads for a draft token; None: all.
    """
    rows = config.head_rows or config.vocab_size
    early = config.layer_weights * exit_layer / config.num_layers / config.weights
    head = config.head_weights * (vocabulary or rows) / rows / config.weights
    whole = width_cost(v)
    return StepCost(v=lambda width: early + (1 - early) * whole(width), draft=early + head)


def acceptance_rate(stats: Sequence[Any]) -> float:
    """Estimate alpha: accepted / checked draft tokens of the given StepStats; NaN if none was checked.

    Checked are the accepted tokens and the one whose rejection ended a step. Draft tokens after it are never checked,
    so accepted / proposed would underestimate alpha.
    """
    accepted = sum(step.accepted for step in stats)
    checked = sum(min(step.committed, step.depth) for step in stats)
    return accepted / checked if checked else math.nan


# --- A batch: serving


class Load(NamedTuple):
    """Work of one forward pass of a batch.

    prefill_tokens: prompt tokens of `prompts` sequences, with prefill_pairs (query, key) pairs; decode_tokens: tokens
    of the decoding sequences, which read kv_tokens cached tokens (their new ones included).
    """

    prefill_tokens: int = 0
    prefill_pairs: int = 0
    prompts: int = 0
    decode_tokens: int = 0
    kv_tokens: int = 0


class BatchCost(Protocol):
    """A cost model of a batch: any object with this method."""

    def seconds(self, load: Load) -> float:
        """Seconds of a forward pass with this load."""


@dataclass(frozen=True)
class RooflineCost:
    """Cost of a batch from a data sheet: max(compute, memory) at flop_rate FLOP/s and bandwidth bytes/s, no overhead.

    Weights, keys and values take 2 bytes per element. Logits are computed once per prompt and per decoded token.
    Ignored: padding and activations; keys that a later part of a prompt rereads count as compute only.
    Raises ValueError for a model with windowed attention, whose reads depend on the lengths.
    """

    config: ModelConfig
    flop_rate: float
    bandwidth: float

    def __post_init__(self):
        if self.config.sliding_window is not None:
            name = self.config.name
            raise ValueError(f"{name} has windowed attention, which this model does not know; fit() one instead.")

    def seconds(self, load: Load) -> float:
        """Seconds of a forward pass with this load."""
        config, fed = self.config, load.prefill_tokens + load.decode_tokens
        pairs = config.num_layers * (load.prefill_pairs + load.kv_tokens)
        work = flops(config, fed, load.prompts + load.decode_tokens, pairs)
        moved = 2 * (config.weights + config.kv_elements(load.prefill_tokens + load.kv_tokens))
        return max(work / self.flop_rate, moved / self.bandwidth)


@dataclass(frozen=True)
class LinearCost:
    """Cost of a batch as a sum of counts (those of Load) times fitted coefficients in seconds; see `fit`.

    step: per pass; prefill_step, decode_step: per pass that has prompt tokens or decode tokens. Where the two run one
    after the other, each has its own coefficient.
    """

    step: float = 0.0
    prefill_step: float = 0.0
    decode_step: float = 0.0
    prefill_token: float = 0.0
    prefill_pair: float = 0.0
    decode_token: float = 0.0
    kv_token: float = 0.0

    def seconds(self, load: Load) -> float:
        """Seconds of a forward pass with this load."""
        tokens, pairs, prompts, decode, kv = load
        time = self.step
        if prompts:
            time += self.prefill_step + self.prefill_token * tokens + self.prefill_pair * pairs
        if decode:
            time += self.decode_step + self.decode_token * decode + self.kv_token * kv
        return time


def fit(measured: Sequence[tuple[Load, float]], terms: Sequence[str]) -> LinearCost:
    """Fit non-negative coefficients to measured (load, seconds), by least squares of the relative errors.

    terms: names of LinearCost's coefficients; needs at least as many measured passes.
    """
    if len(measured) < len(terms):
        raise ValueError(f"{len(measured)} steps cannot fix {len(terms)} coefficients; measure as many passes.")
    one = [LinearCost(**{term: 1.0}) for term in terms]  # a coefficient of 1 yields the count itself
    counts = np.array([[unit.seconds(load) for unit in one] for load, _ in measured])
    coefficients = _not_negative(counts / np.array([[seconds] for _, seconds in measured]))
    return LinearCost(**dict(zip(terms, coefficients.tolist(), strict=True)))


def _not_negative(rows: np.ndarray) -> np.ndarray:
    """Solve rows @ x = 1 for x >= 0: least squares, dropping the most negative column until none is negative."""
    scale = np.abs(rows).max(axis=0)
    kept, x = np.flatnonzero(scale), np.zeros(rows.shape[1])
    while len(kept):
        part = np.linalg.lstsq(rows[:, kept] / scale[kept], np.ones(len(rows)), rcond=None)[0]
        if (part >= 0).all():
            x[kept] = part / scale[kept]
            break
        kept = np.delete(kept, part.argmin())
    return x


# --- Break-even points


def crossing(at: Sequence[float], values: Sequence[float], level: float) -> float:
    """The point from which `values` stays at or above `level`, interpolated on a logarithmic axis.

    at: ascending and positive, one per value. The first point if no value lies below; NaN if the last one does.
    """
    above = max((i + 1 for i, value in enumerate(values) if value < level), default=0)
    if above in (0, len(values)):
        return math.nan if above else float(at[0])
    share = (level - values[above - 1]) / (values[above] - values[above - 1])
    return at[above - 1] * (at[above] / at[above - 1]) ** share


def break_even_tokens(startup: float, slow: float, fast: float) -> float:
    """Tokens after which `startup` seconds are earned back, at `slow` and `fast` seconds per token; inf if never.

    >>> break_even_tokens(60, 0.04, 0.01)
    2000
    """
    gain = slow - fast
    return math.ceil(round(startup / gain, 6)) if gain > 0 else 0 if startup <= 0 else math.inf
