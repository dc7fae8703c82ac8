"""Work, traffic and the roofline: what a forward must compute and move, and the time (lessons 00, 01).

Pure functions of a ModelConfig. A multiply-add is 2 FLOPs; bandwidths are bytes/s, rates FLOP/s, times s.
S cached tokens, T tokens fed in one forward, b sequences. Ignored: norms, activations, embeddings (< 1 %).
KeyError for a dtype that ELEMENT_BYTES lacks.
Source: Williams et al. 2009 (roofline); Pope et al. 2022, "Efficiently scaling transformer inference".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from lessons_lib.measure.config import ELEMENT_BYTES, ModelConfig


class Rates(Protocol):
    """What predictions need of a machine; hardware.Hardware has it."""

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


def flops_decode(shape: ModelConfig, batch: int = 1, cached: int = 0) -> int:
    """FLOPs of one decode step that attends to `cached` keys a sequence: b(2N + 4·L·H·d·S)."""
    return batch * (2 * shape.weights + 4 * shape.num_heads * shape.head_dim * shape.kept(cached))


def flops_prefill(shape: ModelConfig, tokens: int, rows: int = 1) -> int:
    """FLOPs of one forward over T `tokens`, causal kernel: 2·N_lay·T + 2·N_head·rows + 4·L·H·d·T(T+1)/2.

    rows: positions that get logits, 1 with logits_to_keep=1, else T. A dense (eager) kernel computes masked pairs
    too, T² instead of T(T+1)/2.
    """
    matrices = 2 * shape.layer_weights * tokens + 2 * shape.head_weights * rows
    return matrices + 4 * shape.num_heads * shape.head_dim * shape.attended(tokens)


def flops_generate(shape: ModelConfig, prompt: int, new: int, cached: bool = True) -> int:
    """FLOPs of producing `new` tokens after `prompt` tokens; the first comes from the prefill, cached or not.

    Without a cache a step is a prefill of the whole text so far. Matrices: linear in the length with a cache,
    quadratic without; attention: quadratic with, cubic without.
    """
    lengths = range(prompt + 1, prompt + new)  # the last new token is never fed
    steps = (flops_decode(shape, 1, s) if cached else flops_prefill(shape, s) for s in lengths)
    return flops_prefill(shape, prompt) + sum(steps)


def bytes_decode(
    shape: ModelConfig, batch: int = 1, cached: int = 0, weight_bytes: float = 2, cache_bytes: float = 2
) -> float:
    """Bytes one decode step must read: W + b·S·k; W = N·e_w once for the batch, the cache once a sequence."""
    return shape.weights * weight_bytes + batch * shape.kv_elements(cached) * cache_bytes


def bytes_prefill(shape: ModelConfig, tokens: int, weight_bytes: float = 2, cache_bytes: float = 2) -> float:
    """Bytes one prefill must move: W read, T·k written."""
    return shape.weights * weight_bytes + shape.kv_elements(tokens) * cache_bytes


def ridge(flop_rate: float, bandwidth: float) -> float:
    """Ridge point in FLOPs per byte: work of lower intensity is memory-bound, of higher compute-bound."""
    return flop_rate / bandwidth


def critical_batch(ridge_point: float, weight_bytes: float = 2) -> float:
    """Batch b* = ridge·e_w/2 from which a decode step's matrices are compute-bound (KV cache ignored)."""
    return ridge_point * weight_bytes / 2


def bracket(flops: float, moved: float, flop_rate: float, bandwidth: float) -> Bracket:
    """Seconds for this work (FLOPs, bytes): between max(compute, memory) and compute + memory."""
    compute, memory = flops / flop_rate, moved / bandwidth
    return Bracket(max(compute, memory), compute + memory)


def limit(
    flops: float, moved: float, hardware: Rates, dtype: str, flop_rate: float = 0.0, bandwidth: float = 0.0
) -> float:
    """Seconds that no kernel beats: all bytes at the best bandwidth seen in any reading, or all FLOPs at the best rate.

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


def tokens_per_second_limit(bandwidth: float, shape: ModelConfig) -> float:
    """Most tokens per second one sequence can decode with weights of 16 bits: B/W, before anything is cached."""
    return bandwidth / bytes_decode(shape)


def predict_decode_step(
    shape: ModelConfig,
    hardware: Rates,
    dtype: str = "bf16",
    batch: int = 1,
    cached: int = 0,
    bandwidth: float | None = None,
) -> Bracket:
    """Seconds of one decode step, from the bandwidth that a matvec in this dtype reaches on this machine.

    bandwidth: bytes/s to take instead, such as CostModel.bandwidth, of this model's own matrices. ValueError for a
    dtype that was not measured.
    """
    moved = bytes_decode(shape, batch, cached, ELEMENT_BYTES[dtype], cache_element_bytes(dtype))
    return _time(flops_decode(shape, batch, cached), moved, hardware, dtype, bandwidth=bandwidth)


def predict_prefill(
    shape: ModelConfig, hardware: Rates, dtype: str = "bf16", tokens: int = 1, flop_rate: float | None = None
) -> Bracket:
    """Seconds of one prefill of `tokens` tokens, with logits of the last.

    flop_rate: FLOP/s to take instead of the best square product's, such as CostModel.flop_rate. ValueError for a dtype
    that was not measured.
    """
    moved = bytes_prefill(shape, tokens, ELEMENT_BYTES[dtype], cache_element_bytes(dtype))
    return _time(flops_prefill(shape, tokens), moved, hardware, dtype, flop_rate=flop_rate)


def cache_element_bytes(dtype: str) -> float:
    """Bytes per element of the KV cache beside weights of this dtype: 16 bits for quantized weights."""
    return max(2, ELEMENT_BYTES[dtype])


def _time(
    flops: float,
    moved: float,
    hardware: Rates,
    dtype: str,
    bandwidth: float | None = None,
    flop_rate: float | None = None,
) -> Bracket:
    if dtype not in hardware.matvec_bandwidth or dtype not in hardware.matmul_flops:
        known = ", ".join(hardware.matvec_bandwidth) or "nothing"
        raise ValueError(f"No rates for {dtype} ({known} measured); call probe(dtypes=[...]) with it first.")
    rate, speed = flop_rate or hardware.matmul_flops[dtype], bandwidth or hardware.matvec_bandwidth[dtype]
    return bracket(flops, moved, rate, speed)
