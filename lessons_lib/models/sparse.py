"""Activation sparsity (lesson 12): copies of the decoder with hooks, with cut activations, or with skipped work.

Each copy shares all weights with the decoder, which is not changed. A matrix is named (layer number, "qkv" | "out" |
"gate_up" | "down"). Inputs cut at a threshold: Liu et al. 2024 (TEAL, arXiv 2408.14690); gates: Lee et al. 2024 (CATS,
arXiv 2404.08763).
"""

from collections.abc import Callable, Mapping
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lessons_lib.attention.heads import prepared
from lessons_lib.attention.naive import probabilities
from lessons_lib.attention.traffic import Memory
from lessons_lib.caches.cache import causal_mask
from lessons_lib.measure.sparsity import highest, threshold
from lessons_lib.models.decoder import Decoder
from lessons_lib.quantization.calibration import Name, linears
from lessons_lib.quantization.linear import sharing_copy

Change = Callable[[Name, Tensor], Tensor]


def attention_weights(q: Tensor, keys: Tensor, mask: Tensor | None = None) -> Tensor:
    """Softmax weights (H, T, S) of q (H, T, d) and keys (H_kv, S, d). mask: (T, S) bool, or None for causal.

    In float32 or better. Masked entries are 0, but measures must not count them as sparsity.
    """
    mask = causal_mask(q.shape[1], keys.shape[1], q.device) if mask is None else mask
    q, keys, _ = prepared(q, keys, keys)
    return probabilities(q, keys, mask, Memory()).flatten(0, 1)


def keep_keys(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, share: float, score=None) -> Tensor:
    """As `attend`, but each query attends only to its best `share` of keys, with weights rescaled to sum to 1.

    score: function from the weights (H, T, S) to the values that rank them, of the same shape; None ranks by the
    weights.
    """
    mask = causal_mask(q.shape[1], keys.shape[1], q.device) if mask is None else mask
    weights = attention_weights(q, keys, mask)
    weights = weights * highest(weights if score is None else score(weights), share, mask.expand(weights.shape))
    weights = weights / weights.sum(-1, keepdim=True)
    return (weights @ values.to(weights.dtype).repeat_interleave(len(q) // len(values), 0)).to(q.dtype)


def tapped(decoder: Decoder, into: Change | None = None, out: Change | None = None, look=None) -> Decoder:
    """A copy of the decoder with hooks: into(name, x) replaces a matrix's input x, out(name, y) its output y.

    look(layer, q, keys, mask): called with the inputs of attention, as `attention_weights` takes them. The head has no
    hook.
    """
    copy = sharing_copy(decoder)
    for name, linear in linears(copy, head=False).items():
        if into:
            linear.register_forward_pre_hook(lambda _, args, name=name: into(name, args[0]))
        if out:
            linear.register_forward_hook(lambda _, args, y, name=name: out(name, y))
    for layer in copy.layers if look else ():
        layer.attend = partial(_seen, look, layer.index, layer.attend)
    return copy


def _seen(look: Callable, layer: int, attend: Callable, q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None):
    look(layer, q, keys, mask)
    return attend(q, keys, values, mask)


def gate_of(y: Tensor) -> Tensor:
    """silu(gate) (T, D_ff) from the output of "gate_up" (T, 2 D_ff)."""
    return F.silu(y.chunk(2, -1)[0])


def cut_inputs(thresholds: Mapping[Name, float]) -> Change:
    """An `into` hook: sets entries of a matrix's input to 0 where |x| is at or below the threshold (TEAL)."""
    return lambda name, x: x.masked_fill(x.abs() <= thresholds[name], 0) if name in thresholds else x


def cut_gates(thresholds: Mapping[Name, float]) -> Change:
    """An `out` hook: neurons with |silu(gate)| at or below the threshold of (layer, "gate_up") become 0 (CATS)."""

    def out(name: Name, y: Tensor) -> Tensor:
        if name[1] != "gate_up" or name not in thresholds:
            return y
        gate, up = y.chunk(2, -1)
        return torch.cat([gate.masked_fill(gate_of(y).abs() <= thresholds[name], 0), up], -1)

    return out


def drop(sparsity: float, generator: torch.Generator) -> Change:
    """An `into` or `out` hook, as a control: the same share of entries becomes 0, but at random."""
    return lambda name, x: x.masked_fill(torch.rand(x.shape, generator=generator).to(x.device) < sparsity, 0)


class GateFirst(nn.Module):
    """Replaces "gate_up" for a single token: gate and up are 0 where |silu(gate)| is at or below the threshold."""

    def __init__(self, linear: nn.Linear, threshold: float):
        super().__init__()
        self.weight, self.threshold = linear.weight, threshold

    def forward(self, x: Tensor) -> Tensor:
        """x (1, D) -> (1, 2 D_ff)."""
        if len(x) != 1:
            raise ValueError(
                f"Skipping is for one row, not {len(x)}; use tapped(decoder, out=cut_gates(...)) for more."
            )
        gate_weight, up_weight = self.weight.chunk(2)
        gate = F.linear(x, gate_weight)[0]
        # only the rows of W_up whose gate is active are read
        active = (F.silu(gate).abs() > self.threshold).nonzero()[:, 0]
        both = torch.zeros(2, len(gate), dtype=x.dtype, device=x.device)
        both[0, active], both[1, active] = gate[active], up_weight.index_select(0, active) @ x[0]
        return both.view(1, -1)


class SkippingDown(nn.Module):
    """Replaces "down" for a single token: reads only the columns of W_down whose neurons are not 0."""

    def __init__(self, linear: nn.Linear):
        super().__init__()
        self.register_buffer("columns", linear.weight.t().contiguous())  # transposed, so that a column is contiguous

    def forward(self, x: Tensor) -> Tensor:
        """x (1, D_ff) -> (1, D)."""
        return sum_rows(x, self.columns)


def skipping(decoder: Decoder, thresholds: Mapping[Name, float]) -> Decoder:
    """A copy that computes one token as with `cut_gates`, but skips work: gates first, then only the active neurons."""
    copy = sharing_copy(decoder)
    for number, layer in enumerate(copy.layers):
        if (number, "gate_up") not in thresholds:
            raise ValueError(f"No threshold for the gate of layer {number}; calibrate all of them.")
        layer.gate_up = GateFirst(layer.gate_up, thresholds[number, "gate_up"])
        layer.down = SkippingDown(layer.down)
    return copy


def sum_rows(x: Tensor, table: Tensor) -> Tensor:
    """x (1, N) times table (N, D) -> (1, D), reading only the rows where x is not 0, without copying them."""
    active = x[0].nonzero()[:, 0]
    if not len(active):  # embedding_bag does not accept an empty selection
        return x.new_zeros(1, table.shape[1])
    return F.embedding_bag(active[None], table, mode="sum", per_sample_weights=x[:, active])


def calibrated(seen: Mapping[Name, Tensor], sparsity: float) -> dict[Name, float]:
    """For each matrix, the threshold that cuts a share `sparsity` of the values seen there (any shape)."""
    return {name: threshold(values, sparsity) for name, values in seen.items()}
