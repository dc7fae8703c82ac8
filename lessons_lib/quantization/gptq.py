"""GPTQ (lesson 10): round one column of a matrix after another, and let later columns make up for the error.

Frantar et al. 2022 (arXiv 2210.17323), after Optimal Brain Surgeon. A layer's outputs on calibration inputs change
by tr(d H dᵀ), where d is what rounding did to W and H = (2/n) Σ x xᵀ. With (H + damping)^-1 = UᵀU, U upper
triangular, the error e of column j, divided by U_jj, times row j of U is what the columns after j best subtract.

It is a greedy choice, column by column: usually far better than rounding to the nearest, but that is no theorem (a
test keeps one row of three columns on which `sweep` is worse). So `gptq` keeps rounding to the nearest for rows on
which that is better: rows share no error. For a diagonal H both are the same.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from lessons_lib.quantization.formats import (
    ROW,
    TENSOR,
    Grid,
    Integers,
    blocks,
    check_bits,
    check_values,
    fit_grid,
    pack,
    quantize,
    working_dtype,
)


def hessian(inputs: Tensor) -> Tensor:
    """H = (2/n) Σ x xᵀ of a layer's inputs (n, K) -> (K, K) float64. For more inputs, average those of equal n.

    Matrices that read the same inputs (q, k and v; gate and up) share it. ValueError for inputs that are not finite.
    """
    check_values(inputs, "the calibration inputs")
    x = inputs.detach().reshape(-1, inputs.shape[-1]).double()
    return 2 / len(x) * x.T @ x


def layer_loss(weight: Tensor, rounded: Tensor, hessian: Tensor) -> float:
    """tr(d H dᵀ) with d = weight - rounded, both (N, K), H (K, K): twice the mean square change of the outputs."""
    return float(row_losses(weight, rounded, hessian).sum())


def row_losses(weight: Tensor, rounded: Tensor, hessian: Tensor) -> Tensor:
    """(N,) the share of each row in `layer_loss`."""
    d = weight.to(hessian) - rounded.to(hessian)
    return (d @ hessian * d).sum(1)


def gptq(
    weight: Tensor,
    hessian: Tensor,
    bits: int = 4,
    per: str | int = ROW,
    kind: str = "absmax",
    *,
    damp: float = 0.01,
    act_order: bool = False,
    block: int = 128,
) -> Integers:
    """weight (N, K) and H (K, K) -> integers as `quantize` gives them, with other codes. per: "row" or a group size.

    damp: share of the mean diagonal added to H's, tenfold again until its Cholesky factor exists. act_order: columns
    of the largest inputs first. Groups get their scale from the columns as they are when their turn comes, with
    act_order from the original ones. block: columns between two updates of all that follow; it changes no result.
    Raises ValueError for values that are not finite, for shapes, bits, kinds, groups and dampings that do not fit, and
    for a Hessian that no damping makes positive definite.
    """
    check_bits(bits)
    _check_shapes(weight, hessian, per, damp, block)
    h = hessian.to(working_dtype(hessian.dtype), copy=True)
    dead = h.diagonal() == 0  # inputs that were never anything but zero: their weights do not matter
    h.diagonal()[dead] = 1
    w = weight.detach().to(h).masked_fill(dead, 0)
    order = h.diagonal().argsort(descending=True, stable=True) if act_order else torch.arange(len(h), device=h.device)
    size = w.shape[1] if per == ROW else per
    columns = _Columns(w, size, order.tolist(), lambda group: fit_grid(group, bits, kind), act_order)
    factor = inverse_factor(h[order][:, order], damp)
    block = block if per == ROW else -(-block // size) * size  # no group reaches into the next block
    sweep(w[:, order], factor, block, columns.round)
    found = Integers(weight.shape, weight.dtype, pack(columns.codes, bits), columns.grid())
    nearest = quantize(weight, bits, per, kind)
    losses = [row_losses(weight, of.dequantize(), hessian.to(h)) for of in (found, nearest)]
    return _mixed(found, nearest, losses[1] < losses[0])


def _mixed(found: Integers, nearest: Integers, rows: Tensor) -> Integers:
    """`found`, but with these rows (N,) of `nearest`."""

    def of(one: Tensor | None, other: Tensor | None) -> Tensor | None:
        """Both (N, K), or (N x groups, 1)."""
        return None if one is None else torch.where(rows.repeat_interleave(len(one) // len(rows))[:, None], other, one)

    a, b = found.grid, nearest.grid
    grid = Grid(a.bits, of(a.scales, b.scales), of(a.zeros, b.zeros), of(a.lows, b.lows))
    return Integers(found.shape, found.dtype, pack(of(found.levels(), nearest.levels()), a.bits), grid)


class _Columns:
    """Rounds columns in any order, and keeps their codes and grids where they belong."""

    def __init__(self, w: Tensor, size: int, order: list[int], fit: Callable[[Tensor], Grid], static: bool):
        """order: the column that stands at each place. static: all grids come from w as it is now."""
        self.size, self.order, self.fit = size, order, fit
        self.codes = torch.empty(w.shape, dtype=torch.uint8, device=w.device)
        self.grids = {group: fit(part) for group, part in enumerate(w.split(size, 1))} if static else {}

    def round(self, w: Tensor, j: int) -> Tensor:
        """w (N, K) in order, corrected so far -> its column at place j rounded (N,)."""
        at = self.order[j]
        group = at // self.size
        if group not in self.grids:  # its first column: nothing is permuted then
            self.grids[group] = self.fit(w[:, j : j + self.size])
        codes = self.grids[group].encode(w[:, j : j + 1])
        self.codes[:, at : at + 1] = codes
        return self.grids[group].decode(codes, w.dtype)[:, 0]

    def grid(self) -> Grid:
        """One grid for all groups, in the order of `blocks`."""
        grids = [self.grids[group] for group in range(len(self.grids))]
        parts = zip(*((grid.scales, grid.zeros, grid.lows) for grid in grids), strict=True)
        return Grid(grids[0].bits, *(None if p[0] is None else torch.cat(p, 1).reshape(-1, 1) for p in parts))


def sweep(w: Tensor, factor: Tensor, block: int, round_column: Callable[[Tensor, int], Tensor]) -> Tensor:
    """Round all columns of w (N, K) in order -> the rounded matrix.

    factor: U (K, K). round_column(w, j) gives column j rounded (N,), from w as corrected so far. Within a block
    corrections are made at once, beyond it when the block is done: the same sums, in larger products.
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
    """H (K, K) -> U (K, K), upper triangular, where (H + damp·mean(diag H)·I)^-1 = UᵀU.

    Ten times the damping where it is too little; ValueError if ten times the mean is.
    """
    unit = hessian.diagonal().mean() * torch.eye(len(hessian), dtype=hessian.dtype, device=hessian.device)
    while damp <= 10:
        lower, failed = torch.linalg.cholesky_ex(hessian + damp * unit)
        if not failed:
            upper, failed = torch.linalg.cholesky_ex(torch.cholesky_inverse(lower), upper=True)
        if not failed:
            return upper
        damp = 10 * damp or 1e-4
    raise ValueError("no damping makes this Hessian positive definite; pass hessian(inputs) of the layer's inputs")


def _check_shapes(weight: Tensor, hessian: Tensor, per: str | int, damp: float, block: int) -> None:
    check_values(weight, "the weight")
    check_values(hessian, "the Hessian")
    if per == TENSOR:
        raise ValueError('GPTQ rounds column by column with a scale per "row" or group; pass one of those as per')
    blocks(weight, per)
    if weight.ndim != 2 or hessian.shape != (weight.shape[1],) * 2:
        raise ValueError(
            f"a weight (N, K) needs a Hessian (K, K), not {tuple(weight.shape)} and {tuple(hessian.shape)}"
        )
    if damp < 0 or block < 1:
        raise ValueError(f"damp >= 0 and block >= 1 are needed, not {damp} and {block}")
