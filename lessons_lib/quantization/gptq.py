"""GPTQ (lesson 10): rounding one column at a time, while later columns compensate for its error.

Rounding changes a layer's outputs on calibration inputs by tr(d H dᵀ), where d is the change of W and H = (2/n) Σ x xᵀ.
Let (H + damping)^-1 = UᵀU, U upper triangular. The best compensation subtracts e / U_jj times row j of U from the
columns after j, where e is the error of column j.
This is a greedy choice. It is usually far better than rounding to nearest, but not always. So `gptq` keeps rounding to
nearest for the rows on which that is better: rows are independent.
Source: Frantar et al. 2022, arXiv 2210.17323, after Optimal Brain Surgeon.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from lessons_lib.quantization.calibration import MATRICES, Name, Windows, watching
from lessons_lib.quantization.formats import integers
from lessons_lib.quantization.integers import (
    ROW,
    TENSOR,
    Grid,
    Integers,
    check_values,
    fit_grid,
    pack,
    quantize,
    working_dtype,
)
from lessons_lib.quantization.linear import FakeQuantLinear, sharing_copy

BLOCK = 128  # columns between two updates of all columns after them; it does not change the result


def hessian(inputs: Tensor) -> Tensor:
    """H = (2/n) Σ x xᵀ of a layer's inputs (n, K) -> (K, K) float64. For more inputs, average those of equal n.

    Matrices with the same inputs (q, k and v; gate and up) share it.
    """
    check_values(inputs, "the calibration inputs")
    x = inputs.detach().reshape(-1, inputs.shape[-1]).double()
    return 2 / len(x) * x.T @ x


def layer_loss(weight: Tensor, rounded: Tensor, hessian: Tensor) -> float:
    """tr(d H dᵀ) with d = weight - rounded, both (N, K), H (K, K): twice the mean squared change of the outputs."""
    return float(row_losses(weight, rounded, hessian).sum())


def row_losses(weight: Tensor, rounded: Tensor, hessian: Tensor) -> Tensor:
    """Contribution of each row (N,) to `layer_loss`."""
    d = weight.to(hessian) - rounded.to(hessian)
    return (d @ hessian * d).sum(1)


def gptq(
    weight: Tensor,
    hessian: Tensor,
    bits: int = 4,
    per: str | int = ROW,
    kind: str = "absmax",
    *,
    act_order: bool = False,
) -> Integers:
    """GPTQ: round weight (N, K) with Hessian H (K, K) to integers as `quantize` does, but with compensated codes.

    per: "row" or a group size.
    act_order: process columns in descending order of input size. A group's scale is fitted when its first column is
    reached, to the weights compensated so far; with act_order, to the original weights.
    """
    check_values(hessian, "the Hessian")
    if per == TENSOR:
        raise ValueError('GPTQ rounds column by column with a scale per "row" or group; pass one of those as per')
    if weight.ndim != 2 or hessian.shape != (weight.shape[1],) * 2:
        raise ValueError(
            f"a weight (N, K) needs a Hessian (K, K), not {tuple(weight.shape)} and {tuple(hessian.shape)}"
        )
    nearest = quantize(weight, bits, per, kind)  # refuses bits, kinds and groups that do not exist
    h = hessian.to(working_dtype(hessian.dtype), copy=True)
    # 1. columns whose inputs were always zero: their weights do not matter
    dead = h.diagonal() == 0
    h.diagonal()[dead] = 1
    w = weight.detach().to(h).masked_fill(dead, 0)
    # 2. sweep over the columns in order, rounding and compensating
    order = h.diagonal().argsort(descending=True, stable=True) if act_order else torch.arange(len(h), device=h.device)
    size = w.shape[1] if per == ROW else per
    columns = _Columns(w, size, order.tolist(), lambda group: fit_grid(group, bits, kind), act_order)
    factor = inverse_factor(h[order][:, order])
    block = BLOCK if per == ROW else -(-BLOCK // size) * size  # whole groups per block
    sweep(w[:, order], factor, block, columns.round)
    found = Integers(weight.shape, weight.dtype, pack(columns.codes, bits), columns.grid())
    # 3. keep rounding to nearest for the rows on which it is better
    losses = [row_losses(weight, of.dequantize(), hessian.to(h)) for of in (found, nearest)]
    return _mixed(found, nearest, losses[1] < losses[0])


def _mixed(found: Integers, nearest: Integers, rows: Tensor) -> Integers:
    """`found`, with the rows (N,) that are True taken from `nearest`."""

    def of(one: Tensor | None, other: Tensor | None) -> Tensor | None:
        """one and other: both (N, K), or both (N x groups, 1)."""
        return None if one is None else torch.where(rows.repeat_interleave(len(one) // len(rows))[:, None], other, one)

    a, b = found.grid, nearest.grid
    grid = Grid(a.bits, of(a.scales, b.scales), of(a.zeros, b.zeros), of(a.lows, b.lows))
    return Integers(found.shape, found.dtype, pack(of(found.levels(), nearest.levels()), a.bits), grid)


class _Columns:
    """Rounds columns in any order, and stores their codes and grids at the original positions."""

    def __init__(self, w: Tensor, size: int, order: list[int], fit: Callable[[Tensor], Grid], static: bool):
        """order: the original column at each position. static: fit all grids now, to w as it is."""
        self.size, self.order, self.fit = size, order, fit
        self.codes = torch.empty(w.shape, dtype=torch.uint8, device=w.device)
        self.grids = {group: fit(part) for group, part in enumerate(w.split(size, 1))} if static else {}

    def round(self, w: Tensor, j: int) -> Tensor:
        """Round the column at position j of w (N, K), which is in order and compensated so far -> (N,)."""
        at = self.order[j]
        group = at // self.size
        if group not in self.grids:  # j is its first column, as columns are not permuted in this case
            self.grids[group] = self.fit(w[:, j : j + self.size])
        codes = self.grids[group].encode(w[:, j : j + 1])
        self.codes[:, at : at + 1] = codes
        return self.grids[group].decode(codes, w.dtype)[:, 0]

    def grid(self) -> Grid:
        """The grids of all groups as one, in the order of `blocks`."""
        grids = [self.grids[group] for group in range(len(self.grids))]
        parts = zip(*((grid.scales, grid.zeros, grid.lows) for grid in grids), strict=True)
        return Grid(grids[0].bits, *(None if p[0] is None else torch.cat(p, 1).reshape(-1, 1) for p in parts))


def sweep(w: Tensor, factor: Tensor, block: int, round_column: Callable[[Tensor, int], Tensor]) -> Tensor:
    """Round all columns of w (N, K) in order, compensating in later columns -> the rounded matrix.

    factor: U (K, K). round_column(w, j): column j of the compensated w, rounded (N,). Columns of the same block are
    updated at once, all later ones when the block is done: the same sums, in larger matmuls.
    """
    w, rounded = w.clone(), torch.empty_like(w)
    for start in range(0, w.shape[1], block):
        end = min(start + block, w.shape[1])
        errors = torch.empty_like(w[:, start:end])
        for j in range(start, end):
            rounded[:, j] = round_column(w, j)
            errors[:, j - start] = (w[:, j] - rounded[:, j]) / factor[j, j]
            w[:, j:end] -= errors[:, j - start, None] * factor[j, j:end]
        w[:, end:] -= errors @ factor[start:end, end:]
    return rounded


def inverse_factor(hessian: Tensor, damp: float = 0.01) -> Tensor:
    """H (K, K) -> U (K, K), upper triangular, with (H + damp·mean(diag H)·I)^-1 = UᵀU.

    Damping gives H an inverse where there are fewer inputs than columns; without it (0) H must have one.
    """
    unit = hessian.diagonal().mean() * torch.eye(len(hessian), dtype=hessian.dtype, device=hessian.device)
    lower = torch.linalg.cholesky(hessian + damp * unit)
    return torch.linalg.cholesky(torch.cholesky_inverse(lower), upper=True)


@torch.no_grad()
def gptq_decoder(decoder: nn.Module, windows: Windows, format: str) -> dict[Name, Integers]:
    """Round the weights of all layers by GPTQ with act-order, layer by layer.

    Each layer is calibrated on the outputs of the rounded layers before it; within a layer, all Hessians are measured
    before anything is rounded. format: an integer format. windows: at least one.
    """
    options = integers(format)
    if options is None or not windows:
        raise ValueError(f"GPTQ rounds to integers, such as 'int3 g64', with windows of ids to calibrate on; got "
                         f"{format!r} and {len(windows)} windows")  # fmt: skip
    calls, rounded = first_layer_calls(decoder, windows), {}
    for number, layer in enumerate(decoder.layers):
        matrices, sums, count = {(number, name): getattr(layer, name) for name in MATRICES}, {}, 0

        def see(name: Name, x: Tensor, sums=sums) -> None:
            sums[name] = sums.get(name, 0) + len(x) * hessian(x)

        # 1. Hessians of the inputs of this layer's matrices
        with watching(matrices, see):
            for x, *others in calls:
                layer(x, *others)
                count += len(x)
        # 2. round the matrices
        found = {
            name: gptq(matrices[name].weight, total / count, act_order=True, **options) for name, total in sums.items()
        }
        # 3. run the rounded layer: its outputs are the inputs of the next layer
        after = sharing_copy(layer)
        for (_, name), codes in found.items():
            setattr(after, name, FakeQuantLinear(codes))
        calls = [(after(x, *others), *others) for x, *others in calls]
        rounded |= found
    return rounded


def first_layer_calls(decoder: nn.Module, windows: Windows) -> list[tuple]:
    """Arguments of the first layer's call for each window: hidden states (T, D), and the layer's further arguments."""
    calls: list[tuple] = []
    handle = decoder.layers[0].register_forward_pre_hook(lambda _, args: calls.append(args))
    try:
        for ids in windows:
            decoder.read(ids)
    finally:
        handle.remove()
    return calls
