"""One cost model (every lesson): the seconds of a forward pass, predicted before anything is timed.

    seconds = max(bytes / bandwidth, FLOPs / rate) + overhead

or, where nothing overlaps, with the sum in place of the maximum. Work, bytes and FLOPs, follows from a ModelConfig;
rates come from `machine.probe`. Four forms of the same sum:

- `Bracket`: one pass from its work, between maximum and sum (lessons 00, 01); `CalibratedCost`: from timed products
- `StepCost`: a sequence that decodes w tokens a pass, by the width curve v(w): speculation, trees, the ladder
- `LinearCost`, `RooflineCost`: a batch, from its `Load`: serving and its simulator

A multiply-add is 2 FLOPs; bandwidths are bytes/s, rates FLOP/s, times s. S cached tokens, T tokens of one pass, b
sequences. Ignored: norms, activations, embeddings (< 1 %). KeyError for a dtype that ELEMENT_BYTES lacks.
Sources: Williams et al. 2009 (roofline); Pope et al. 2022, "Efficiently scaling transformer inference"; Leviathan et
al. 2022 (arXiv 2211.17192) for chains whose tokens are accepted independently with probability alpha.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np

from lessons_lib.measure.config import ELEMENT_BYTES, ModelConfig

# --- Work: FLOPs and bytes of a forward pass


def flops(config: ModelConfig, tokens: int, logits: int, pairs: int) -> int:
    """FLOPs of a forward pass: 2·N_lay·tokens + 2·N_head·logits + 4·H·d·pairs.

    logits: positions that get some; pairs: (query, key) pairs, summed over layers.
    """
    matrices = 2 * config.layer_weights * tokens + 2 * config.head_weights * logits
    return matrices + 4 * config.num_heads * config.head_dim * pairs


def flops_decode(config: ModelConfig, batch: int = 1, cached: int = 0) -> int:
    """FLOPs of one decode step that attends to `cached` keys a sequence: b(2N + 4·L·H·d·S)."""
    return flops(config, batch, batch, batch * config.kept(cached))


def flops_prefill(config: ModelConfig, tokens: int, rows: int = 1) -> int:
    """FLOPs of one pass over T `tokens`, causal kernel: 2·N_lay·T + 2·N_head·rows + 4·L·H·d·T(T+1)/2.

    rows: positions that get logits, 1 with logits_to_keep=1, else T. A dense (eager) kernel computes masked pairs
    too, T² instead of T(T+1)/2.
    """
    return flops(config, tokens, rows, config.attended(tokens))


def flops_generate(config: ModelConfig, prompt: int, new: int, cached: bool = True) -> int:
    """FLOPs of producing `new` tokens after `prompt` tokens; the first comes from the prefill, cached or not.

    Without a cache a step is a prefill of the whole text so far. Matrices: linear in the length with a cache,
    quadratic without; attention: quadratic with, cubic without.
    """
    lengths = range(prompt + 1, prompt + new)  # the last new token is never fed
    steps = (flops_decode(config, 1, s) if cached else flops_prefill(config, s) for s in lengths)
    return flops_prefill(config, prompt) + sum(steps)


def bytes_decode(
    config: ModelConfig, batch: int = 1, cached: int = 0, weight_bytes: float = 2, cache_bytes: float = 2
) -> float:
    """Bytes one decode step must read: W + b·S·k; W = N·e_w once for the batch, the cache once a sequence."""
    return config.weights * weight_bytes + batch * config.kv_elements(cached) * cache_bytes


def bytes_prefill(config: ModelConfig, tokens: int, weight_bytes: float = 2, cache_bytes: float = 2) -> float:
    """Bytes one prefill must move: W read, T·k written."""
    return config.weights * weight_bytes + config.kv_elements(tokens) * cache_bytes


def cache_element_bytes(dtype: str) -> float:
    """Bytes per element of the KV cache beside weights of this dtype: 16 bits for quantized weights."""
    return max(2, ELEMENT_BYTES[dtype])


# --- The roofline: from work to seconds


class Rates(Protocol):
    """What predictions need of a machine; machine.Hardware has it."""

    read_bandwidth: float
    matvec_bandwidth: dict[str, float]
    matmul_flops: dict[str, float]


@dataclass(frozen=True)
class Bracket:
    """A predicted time in seconds: `low` if compute and memory overlap fully, `high` if not at all."""

    low: float
    high: float

    @property
    def middle(self) -> float:
        """Halfway between; high is at most twice low, so this is at most a third off anything inside."""
        return (self.low + self.high) / 2


def bracket(flops: float, moved: float, flop_rate: float, bandwidth: float) -> Bracket:
    """Seconds for this work (FLOPs, bytes): between max(compute, memory) and compute + memory."""
    compute, memory = flops / flop_rate, moved / bandwidth
    return Bracket(max(compute, memory), compute + memory)


def ridge(flop_rate: float, bandwidth: float) -> float:
    """Ridge point in FLOPs per byte: work of lower intensity is memory-bound, of higher compute-bound."""
    return flop_rate / bandwidth


def critical_batch(ridge_point: float, weight_bytes: float = 2) -> float:
    """Batch b* = ridge·e_w/2 from which a decode step's matrices are compute-bound (KV cache ignored)."""
    return ridge_point * weight_bytes / 2


def limit(
    flops: float, moved: float, hardware: Rates, dtype: str, flop_rate: float = 0.0, bandwidth: float = 0.0
) -> float:
    """Seconds that this work (FLOPs, bytes) takes at least: at the best rates this machine showed, fully overlapped.

    flop_rate, bandwidth: FLOP/s and bytes/s of other products that were timed, such as this model's own; the best that
    the probe saw if that is faster. A dtype without any rate is limited by its bytes alone.
    """
    best = max(flop_rate, hardware.matmul_flops.get(dtype, 0.0))
    reading = max(bandwidth, hardware.read_bandwidth, *hardware.matvec_bandwidth.values())
    return max(moved / reading, flops / best if best else 0.0)


def overhead(measured: float, predicted: Bracket) -> float:
    """Seconds of a measured step that neither compute nor memory explains: t_host = measured - max(...)."""
    return measured - predicted.low


def mbu(step_bytes: float, steps_per_second: float, peak_bandwidth: float) -> float:
    """Model bandwidth utilisation, a share: bytes a step must read, times steps per second, over the peak (bytes/s)."""
    return step_bytes * steps_per_second / peak_bandwidth


def mfu(step_flops: float, steps_per_second: float, peak_flops: float) -> float:
    """Model FLOPs utilisation, a share. The peak (FLOP/s) must be that of dense, not sparse, arithmetic."""
    return step_flops * steps_per_second / peak_flops


def tokens_per_second_limit(bandwidth: float, config: ModelConfig) -> float:
    """Most tokens per second one sequence can decode with weights of 16 bits: B/W, before anything is cached."""
    return bandwidth / bytes_decode(config)


def predict_decode_step(
    config: ModelConfig,
    hardware: Rates,
    dtype: str = "bf16",
    batch: int = 1,
    cached: int = 0,
    bandwidth: float | None = None,
) -> Bracket:
    """Seconds of one decode step, from the bandwidth that a matvec in this dtype reaches on this machine.

    bandwidth: bytes/s to take instead, such as CalibratedCost.bandwidth, of this model's own matrices. ValueError for
    a dtype that was not measured.
    """
    rate, own = _rates(hardware, dtype)
    moved = bytes_decode(config, batch, cached, ELEMENT_BYTES[dtype], cache_element_bytes(dtype))
    return bracket(flops_decode(config, batch, cached), moved, rate, bandwidth or own)


def predict_prefill(
    config: ModelConfig, hardware: Rates, dtype: str = "bf16", tokens: int = 1, flop_rate: float | None = None
) -> Bracket:
    """Seconds of one prefill of `tokens` tokens, with logits of the last.

    flop_rate: FLOP/s to take instead of the best square product's, such as CalibratedCost.flop_rate. ValueError for a
    dtype that was not measured.
    """
    own, bandwidth = _rates(hardware, dtype)
    moved = bytes_prefill(config, tokens, ELEMENT_BYTES[dtype], cache_element_bytes(dtype))
    return bracket(flops_prefill(config, tokens), moved, flop_rate or own, bandwidth)


def _rates(hardware: Rates, dtype: str) -> tuple[float, float]:
    """(FLOP/s, bytes/s) of products in this dtype."""
    if dtype not in hardware.matvec_bandwidth or dtype not in hardware.matmul_flops:
        known = ", ".join(hardware.matvec_bandwidth) or "nothing"
        raise ValueError(f"No rates for {dtype} ({known} measured); call probe(dtypes=[...]) with it first.")
    return hardware.matmul_flops[dtype], hardware.matvec_bandwidth[dtype]


@dataclass(frozen=True)
class CalibratedCost:
    """Seconds of forward passes of one model in one dtype, from products of its own sizes (`machine.calibrate`).

    prompts: {tokens T: seconds of the products of a prefill}; steps: {batch b: of a decode step}, 1 among them.
    launches: {batch: seconds of launching a step}, none until `with_launches`; a prefill launches as batch 1 does.
    per_token: overhead of a prefill's token in seconds, 0 until `fitted`. KeyError for a length or batch not timed.
    """

    config: ModelConfig
    hardware: Rates
    dtype: str
    prompts: dict[int, float]
    steps: dict[int, float]
    launches: dict[int, float] = field(default_factory=dict)
    per_token: float = 0.0

    def decode(self, batch: int = 1, cached: int = 0) -> float:
        """Seconds of a decode step of `batch` requests with `cached` tokens each."""
        cache = batch * self.config.kv_elements(cached) * cache_element_bytes(self.dtype)
        return self.steps[batch] + cache / self.hardware.read_bandwidth + self.launches.get(batch, 0.0)

    def prefill(self, tokens: int) -> float:
        """Seconds of a prefill of so many tokens."""
        attention = flops(self.config, 0, 0, self.config.attended(tokens))
        products = self.prompts[tokens] + attention / self.hardware.matmul_flops[self.dtype]
        return products + self.launches.get(1, 0.0) + self.per_token * tokens

    def request(self, prompt: int, output: int) -> tuple[float, float]:
        """(time to first token, time of all later tokens) in seconds, for `output` tokens after `prompt`."""
        return self.prefill(prompt), sum(self.decode(1, prompt + i) for i in range(1, output))

    def with_launches(self, launches: dict[int, float]) -> CalibratedCost:
        """With the seconds that a step of each batch takes where bytes and FLOPs vanish (a narrow twin's)."""
        return replace(self, launches=dict(launches))

    def fitted(self, tokens: int, seconds: float) -> CalibratedCost:
        """With the overhead per token that explains a prefill of so many tokens in so many seconds."""
        bare = replace(self, per_token=0.0)
        return replace(self, per_token=max(0.0, (seconds - bare.prefill(tokens)) / tokens))

    @property
    def bandwidth(self) -> float:
        """Bytes/s at which one-row products read this model's weights."""
        return self.config.weights * ELEMENT_BYTES[self.dtype] / self.steps[1]

    @property
    def flop_rate(self) -> float:
        """FLOP/s of the products with the most rows that were timed. ValueError if no prompt was."""
        most = max(self.prompts)
        return flops(self.config, most, 1, 0) / self.prompts[most]


# --- One sequence, several tokens a pass: the width curve, speculation, the ladder

WidthCurve = Mapping[int, float] | Callable[[int], float] | None


def width_curve(took: Mapping[int, Any]) -> dict[int, float]:
    """{w: Samples in seconds} -> {w: v(w)}: median time over that of the narrowest width, of one token.

    ValueError for no widths.
    """
    one = took[min(took)].median
    return {w: samples.median / one for w, samples in took.items()}


def width_cost(v: WidthCurve) -> Callable[[int], float]:
    """v as a function: between measured widths a straight line, beyond the last one the last line carried on.

    1 for every width where v is None. ValueError of the function for a curve without any width.
    """
    if v is None:
        return lambda width: 1.0
    return v if callable(v) else partial(_interpolate, sorted(v.items()))


def padded_cost(v: Mapping[int, float]) -> Callable[[int], float]:
    """v of a target that is compiled for the widths of v alone and pads to the next one; inf beyond the last."""
    return lambda width: min((cost for compiled, cost in v.items() if compiled >= width), default=math.inf)


def _interpolate(points: list[tuple[int, float]], width: int) -> float:
    widths, costs = zip(*points, strict=True)
    if width <= widths[-1] or len(points) == 1:
        return float(np.interp(width, widths, costs))
    return costs[-1] + (width - widths[-1]) * (costs[-1] - costs[-2]) / (widths[-1] - widths[-2])


@dataclass(frozen=True)
class StepCost:
    """Seconds of a sequence's decode steps: ((weights + cache) / bandwidth + launch) v(w) + host + draft passes.

    Left as it is, a one-token pass takes 1, and all else is in units of it: draft is then c. weight_bytes: read by
    every pass, whatever its width. kv_bytes: of one cached token. slots: tokens that every pass attends to (None: those
    that are cached). bandwidth: bytes/s of a one-token pass of this kind. launch: seconds that the pass takes beside
    its bytes; host: seconds between two passes; draft: of one draft pass. v: the width curve of the whole pass.
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
        """Bytes that a one-token pass reads after `cached` tokens."""
        return self.weight_bytes + self.kv_bytes * (cached if self.slots is None else self.slots)

    def forward(self, cached: int = 0, tokens: int = 1) -> float:
        """Seconds of a pass over so many tokens. ZeroDivisionError for a bandwidth of 0."""
        return (self.moved(cached) / self.bandwidth + self.launch) * width_cost(self.v)(tokens)

    def step(self, cached: int = 0, tokens: int = 1, drafts: int = 0) -> float:
        """Seconds of a whole step: its draft passes, its forward pass, and what lies between two steps."""
        return drafts * self.draft + self.forward(cached, tokens) + self.host

    def steps(self, stats: Iterable[Any]) -> float:
        """Seconds of all steps of a trace (Steps of `generate` or of a replay), its prefill too if it is there."""
        return sum(self.step(step.length_before, step.num_input_tokens, step.draft_calls) for step in stats)

    def decoding(self, stats: Iterable[Any]) -> float:
        """Seconds of all steps of a trace but its prefill."""
        return self.steps(step for step in stats if not step.is_prefill)

    def speed(self, *traces: Sequence[Any]) -> float:
        """Tokens per second of decoding texts with these traces, prefills left out; nan if no step of theirs decodes.

        Over plain decoding where a one-token pass is the unit.
        """
        tokens = sum(step.committed for stats in traces for step in stats if not step.is_prefill)
        return tokens / sum(self.decoding(stats) for stats in traces) if tokens else math.nan


def expected_tokens(alpha: float, gamma: int) -> float:
    """E[N]: tokens committed per step, bonus included, (1 - alpha^(gamma+1)) / (1 - alpha). ValueError outside
    0 <= alpha <= 1, gamma >= 0."""
    if not 0 <= alpha <= 1 or gamma < 0:
        raise ValueError(f"0 <= alpha <= 1 and gamma >= 0 are needed, not alpha={alpha} and gamma={gamma}")
    return sum(alpha**i for i in range(gamma + 1))  # the sum itself: alpha = 1 is no special case


def walltime_factor(alpha: float, gamma: int, c: float, v: WidthCurve = None, h: float = 0.0) -> float:
    """W: speed over plain decoding, E[N] / (gamma c + v(gamma + 1) + h); h is the host's overhead per step.

    c: one draft pass, in units of a one-token pass of the target, like h. ValueError as `expected_tokens`.
    """
    return expected_tokens(alpha, gamma) / StepCost(v=v, draft=c, host=h).step(tokens=gamma + 1, drafts=gamma)


def best_gamma(alpha: float, c: float, v: WidthCurve = None, most: int = 32) -> int:
    """The draft length from 0 to `most` with the highest W; 0 where plain decoding (W = 1) is not beaten.

    ValueError for an alpha outside 0 to 1.
    """
    v = width_cost(v)
    factors = [1.0, *(walltime_factor(alpha, gamma, c, v) for gamma in range(1, most + 1))]
    return factors.index(max(factors))  # of equals the shortest


def break_even(c: float, v: WidthCurve = None, most: int = 32) -> float:
    """The alpha above which some draft length up to `most` gains; inf if none does. c itself where v is 1."""
    v, low, high = width_cost(v), 0.0, 1.0
    if not best_gamma(1.0, c, v, most):
        return math.inf
    for _ in range(50):  # W grows with alpha, so bisection finds the one crossing
        middle = (low + high) / 2
        low, high = (low, middle) if best_gamma(middle, c, v, most) else (middle, high)
    return high


def acceptance_rate(stats: Sequence[Any]) -> float:
    """alpha-hat: accepted over examined draft tokens of a trace of Steps; nan if none was examined.

    Examined are those accepted and the one whose rejection ended a step. Those after it were never looked at:
    accepted over proposed would underestimate alpha.
    """
    accepted = sum(step.accepted for step in stats)
    examined = sum(min(step.committed, step.depth) for step in stats)
    return accepted / examined if examined else math.nan


# --- A batch: serving


class Load(NamedTuple):
    """One forward pass of a batch. prefill_tokens: prompt tokens fed, by `prompts` requests, with so many (query, key)
    pairs; decode_tokens: fed by the others, which read kv_tokens cached tokens (their new ones included)."""

    prefill_tokens: int = 0
    prefill_pairs: int = 0
    prompts: int = 0
    decode_tokens: int = 0
    kv_tokens: int = 0


class BatchCost(Protocol):
    """A cost model of a batch. Anything with this method will do."""

    def seconds(self, load: Load) -> float:
        """How many seconds a forward pass with this load takes."""


@dataclass(frozen=True)
class RooflineCost:
    """Seconds = overhead + max(compute, memory) of a device of so many FLOP/s and bytes/s, all from its data sheet.

    Keys and values take 2 bytes a number, a weight `weight_bytes`; logits: one row per prompt and per decoded token.
    Ignored: padding, activations; keys that part of a prompt reads again count as compute alone. ValueError for a
    model with windowed attention, whose reads depend on lengths.
    """

    config: ModelConfig
    flop_rate: float
    bandwidth: float
    weight_bytes: float = 2
    overhead: float = 0.0

    def __post_init__(self):
        if self.config.sliding_window is not None:
            name = self.config.name
            raise ValueError(f"{name} has windowed attention, which this model does not know; fit() one instead.")

    def seconds(self, load: Load) -> float:
        """Seconds of a forward pass with this load."""
        config, fed = self.config, load.prefill_tokens + load.decode_tokens
        pairs = config.num_layers * (load.prefill_pairs + load.kv_tokens)
        work = flops(config, fed, load.prompts + load.decode_tokens, pairs)
        moved = config.weights * self.weight_bytes + 2 * config.kv_elements(load.prefill_tokens + load.kv_tokens)
        return self.overhead + bracket(work, moved, self.flop_rate, self.bandwidth).low


@dataclass(frozen=True)
class LinearCost:
    """Seconds = the sum of a price (in seconds) times a count, the counts those of Load: what `fit` finds.

    step: of every pass; prefill_step, decode_step: of one in which a prompt was fed, or a row decoded. Where those
    run one after the other, each has a price of its own.
    """

    step: float = 0.0
    prefill_step: float = 0.0
    decode_step: float = 0.0
    prefill_token: float = 0.0
    prefill_pair: float = 0.0
    prompt: float = 0.0
    decode_token: float = 0.0
    kv_token: float = 0.0

    def seconds(self, load: Load) -> float:
        """Seconds of a forward pass: the sum."""
        tokens, pairs, prompts, decode, kv = load
        time = self.step
        if prompts:
            time += self.prefill_step + self.prefill_token * tokens + self.prefill_pair * pairs + self.prompt * prompts
        if decode:
            time += self.decode_step + self.decode_token * decode + self.kv_token * kv
        return time


TERMS = ("step", "prefill_token", "prefill_pair", "decode_token", "kv_token")


def fit(measured: Sequence[tuple[Load, float]], terms: Sequence[str] = TERMS) -> LinearCost:
    """Prices, none negative, with the least squares of relative errors over measured (load, seconds).

    ValueError with fewer steps than terms, TypeError for a term that LinearCost has not.
    """
    if len(measured) < len(terms):
        raise ValueError(f"{len(measured)} steps cannot fix {len(terms)} prices; measure at least as many passes.")
    one = [LinearCost(**{term: 1.0}) for term in terms]  # a price of 1 gives the count
    counts = np.array([[price.seconds(load) for price in one] for load, _ in measured])
    prices = _not_negative(counts / np.array([[seconds] for _, seconds in measured]))
    return LinearCost(**dict(zip(terms, prices.tolist(), strict=True)))


def _not_negative(rows: np.ndarray) -> np.ndarray:
    """x >= 0 that brings rows @ x near 1: least squares, the most negative column left out until none is."""
    scale = np.abs(rows).max(axis=0)
    kept, x = np.flatnonzero(scale), np.zeros(rows.shape[1])
    while len(kept):
        part = np.linalg.lstsq(rows[:, kept] / scale[kept], np.ones(len(rows)), rcond=None)[0]
        if (part >= 0).all():
            x[kept] = part / scale[kept]
            break
        kept = np.delete(kept, part.argmin())
    return x


# --- From how many tokens on something pays


def crossing(at: Sequence[float], values: Sequence[float], level: float) -> float:
    """The point from which on `values` stays at or above `level`, between two points on a logarithmic axis.

    at: ascending and positive, as many as values. The first point if no value lies below; NaN if the last one does.
    IndexError for no or missing points.
    """
    above = max((i + 1 for i, value in enumerate(values) if value < level), default=0)
    if above in (0, len(values)):
        return math.nan if above else float(at[0])
    share = (level - values[above - 1]) / (values[above] - values[above - 1])
    return at[above - 1] * (at[above] / at[above - 1]) ** share


def break_even_tokens(startup: float, slow: float, fast: float) -> float:
    """Tokens after which `startup` seconds are earned back, at `slow` and `fast` seconds a token; inf if never.

    >>> break_even_tokens(60, 0.04, 0.01)
    2000
    """
    gain = slow - fast
    return math.ceil(round(startup / gain, 6)) if gain > 0 else 0 if startup <= 0 else math.inf
