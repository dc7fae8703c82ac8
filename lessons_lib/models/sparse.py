"""Looking into the readable decoder, and leaving parts of it out (lesson 12): kernels that watch, cut and skip.

Every product of a forward is `kernels.multiply(x, weight)`, every attention `kernels.attend(...)`; the decoder is not
changed. Products are named after their weights: "qkv", "out", "gate_up", "down". Inputs cut at a threshold: Liu et
al. 2024 (TEAL, arXiv 2408.14690); gates: Lee et al. 2024 (CATS, arXiv 2404.08763).
"""

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from lessons_lib.attention.heads import prepared
from lessons_lib.attention.naive import probabilities
from lessons_lib.attention.traffic import Memory
from lessons_lib.caches.cache import causal_mask
from lessons_lib.measure.sparsity import highest, threshold
from lessons_lib.models.calibrate import Place, by_weight, in_layers
from lessons_lib.models.decoder import Decoder
from lessons_lib.models.kernels import Kernels, attend

Change = Callable[[Place, Tensor], Tensor]


def attention_weights(q: Tensor, keys: Tensor, mask: Tensor | None = None) -> Tensor:
    """q (H, T, d), keys (H_kv, S, d), mask (T, S) bool or None for causal -> softmax weights (H, T, S).

    In float32 or better. Masked entries are 0; they are no keys of the row, and measures must not count them.
    Raises ValueError for shapes that do not fit.
    """
    q, keys, _, sight = prepared(q, keys, keys, mask is None, mask)
    return probabilities(q, keys, sight, Memory()).flatten(0, 1)


def keep_keys(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, share: float, score=None) -> Tensor:
    """As `kernels.attend`, over the best `share` of each query's keys only, their weights scaled to sum to 1.

    score: weights (H, T, S) -> what the best are judged by, of the same shape; None: the weights themselves.
    ValueError for shapes that do not fit and a share outside 0 to 1.
    """
    mask = causal_mask(q.shape[1], keys.shape[1], q.device) if mask is None else mask
    weights = attention_weights(q, keys, mask)
    weights = weights * highest(weights if score is None else score(weights), share, mask.expand(weights.shape))
    weights = weights / weights.sum(-1, keepdim=True)
    return (weights @ values.to(weights.dtype).repeat_interleave(len(q) // len(values), 0)).to(q.dtype)


def tapped(decoder: Decoder, into: Change | None = None, out: Change | None = None, look=None) -> Kernels:
    """The decoder's kernels with taps: into(place, x) gives what a product reads instead, out(place, y) what it gives.

    look(layer, q, keys, mask): sees what attention is handed, as `attention_weights` takes it. The head has no tap.
    """
    places, inner, here = by_weight(in_layers(decoder)), decoder.kernels, []

    def multiply(x: Tensor, weight: Tensor) -> Tensor:
        place = places.get(id(weight))
        here[:] = [place]  # attention follows the "qkv" of its layer
        y = inner.multiply(into(place, x) if place and into else x, weight)
        return out(place, y) if place and out else y

    def attended(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        if look:
            look(here[0][0], q, keys, mask)
        return inner.attend(q, keys, values, mask)

    return Kernels(attended, multiply)


def gate_of(y: Tensor) -> Tensor:
    """silu(gate) (T, D_ff) out of what "gate_up" gives (T, 2 D_ff)."""
    return F.silu(y.chunk(2, -1)[0])


def cut_inputs(thresholds: Mapping[Place, float]) -> Change:
    """An `into`: entries of a product's input at or below its threshold in size become 0 (TEAL)."""
    return lambda place, x: x.masked_fill(x.abs() <= thresholds[place], 0) if place in thresholds else x


def cut_gates(thresholds: Mapping[Place, float]) -> Change:
    """An `out`: neurons whose |silu(gate)| is at or below the threshold of (layer, "gate_up") give 0 (CATS)."""

    def out(place: Place, y: Tensor) -> Tensor:
        if place[1] != "gate_up" or place not in thresholds:
            return y
        gate, up = y.chunk(2, -1)
        return torch.cat([gate.masked_fill(gate_of(y).abs() <= thresholds[place], 0), up], -1)

    return out


def drop(sparsity: float, generator: torch.Generator) -> Change:
    """An `into` or `out`, the control: as many entries become 0, but drawn and not chosen."""
    return lambda place, x: x.masked_fill(torch.rand(x.shape, generator=generator).to(x.device) < sparsity, 0)


def skipping(decoder: Decoder, thresholds: Mapping[Place, float]) -> Kernels:
    """Kernels that compute one row as `cut_gates` has it, and read only what it needs: gate first, then the rest.

    The rows of W_up of active neurons are gathered; the columns of W_down, kept as rows of a transposed copy, are
    summed in place. ValueError for layers without a threshold, and for more than one row.
    """
    places = by_weight(in_layers(decoder))
    if missing := [place for place in places.values() if place[1] == "gate_up" and place not in thresholds]:
        raise ValueError(f"No threshold for the gate of layer {missing[0][0]}; calibrate all of them.")
    columns = {id(layer.down.weight): layer.down.weight.t().contiguous() for layer in decoder.layers}

    def multiply(x: Tensor, weight: Tensor) -> Tensor:
        place = places.get(id(weight))
        if place is None or place[1] not in ("gate_up", "down"):
            return F.linear(x, weight)
        if len(x) != 1:
            raise ValueError(
                f"Skipping is for one row, not {len(x)}; use tapped(decoder, out=cut_gates(...)) for more."
            )
        return gate_first(x, weight, thresholds[place]) if place[1] == "gate_up" else sum_rows(x, columns[id(weight)])

    return Kernels(attend, multiply)


def gate_first(x: Tensor, weight: Tensor, t: float) -> Tensor:
    """x (1, D), weight (2 D_ff, D) of gate and up -> (1, 2 D_ff), 0 for both where |silu(gate)| <= t."""
    gate_weight, up_weight = weight.chunk(2)
    gate = F.linear(x, gate_weight)[0]
    active = (F.silu(gate).abs() > t).nonzero()[:, 0]
    both = torch.zeros(2, len(gate), dtype=x.dtype, device=x.device)
    both[0, active], both[1, active] = gate[active], up_weight.index_select(0, active) @ x[0]
    return both.view(1, -1)


def sum_rows(x: Tensor, table: Tensor) -> Tensor:
    """x (1, N) times table (N, D) -> (1, D), reading only the rows where x is not 0 and copying none."""
    active = x[0].nonzero()[:, 0]
    if not len(active):  # which the kernel refuses
        return x.new_zeros(1, table.shape[1])
    return F.embedding_bag(active[None], table, mode="sum", per_sample_weights=x[:, active])


def calibrated(seen: Mapping[Place, Tensor], sparsity: float) -> dict[Place, float]:
    """The threshold of each place that cuts a share `sparsity` of the values seen there, of any shape.

    ValueError for a place without values, and a share that is not from 0 to below 1.
    """
    return {place: threshold(values, sparsity) for place, values in seen.items()}
