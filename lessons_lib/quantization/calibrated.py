"""Calibrated quantization (lesson 10): GPTQ, AWQ and SmoothQuant, which use calibration inputs.

**GPTQ** (Frantar et al. 2022, arXiv 2210.17323, after Optimal Brain Surgeon) rounds the columns of a matrix one by one
and lets later columns compensate for the error. Rounding changes a layer's outputs on calibration inputs by tr(d H dᵀ),
where d is the change of W and H = (2/n) Σ x xᵀ. Let (H + damping)^-1 = UᵀU, U upper triangular. The best compensation
subtracts e / U_jj times row j of U from the columns after j, where e is the error of column j.
This is a greedy choice. It is usually far better than rounding to nearest, but not always (a test keeps one row of
three columns on which `sweep` is worse). So `gptq` keeps rounding to nearest for the rows on which that is better: rows
are independent.

**Scaling** uses that (x / s)·(W·diag(s))ᵀ equals x Wᵀ, but its factors are easier to round. AWQ (Lin et al. 2023, arXiv
2306.00978) is for weight-only formats: it scales up channels with large inputs, so that their weights are rounded more
finely. SmoothQuant (Xiao et al. 2022, arXiv 2211.10438) is for weights and activations: it moves part of the
activations' outliers into the weights. 1/s is folded into the norm before the matrix, so all matrices that read this
norm share s.

The decoders here are `models.Decoder`s. A matrix is named (layer number, "qkv" | "out" | "gate_up" | "down"), the LM
head (number of layers, "head").
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lessons_lib.quantization.formats import (
    ROW,
    TENSOR,
    Grid,
    Integers,
    Quantized,
    Rounding,
    blocks,
    check_bits,
    check_values,
    fit_grid,
    integers,
    pack,
    quantize,
    working_dtype,
)
from lessons_lib.quantization.linear import FakeQuantLinear, sharing_copy

MATRICES, HEAD = ("qkv", "out", "gate_up", "down"), "head"
SAMPLE = 256  # input rows kept for each matrix
Name = tuple[int, str]  # name of a matrix: (layer number, "qkv")
Windows = Sequence[Sequence[int]]  # calibration sequences of ids, each run on its own


def linears(decoder: nn.Module, head: bool = True) -> dict[Name, nn.Module]:
    """The linear layers of a decoder by name, in the order of a forward pass. head: include the LM head."""
    found = {(i, name): getattr(layer, name) for i, layer in enumerate(decoder.layers) for name in MATRICES}
    return found | ({(len(decoder.layers), HEAD): decoder.head} if head else {})


@contextmanager
def watching(modules: Mapping[Name, nn.Module], see: Callable[[Name, Tensor], None]) -> Iterator[None]:
    """Context manager that calls see(name, x) with the input x (T, K) of every call of these modules."""

    def hook_of(name: Name):
        def hook(_, args: tuple) -> None:
            see(name, args[0])

        return hook

    handles = [module.register_forward_pre_hook(hook_of(name)) for name, module in modules.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@torch.no_grad()
def watch(decoder: nn.Module, windows: Windows, see: Callable[[Name, Tensor], None]) -> None:
    """Run the windows through the decoder and call see(name, x) with the input x (T, K) of each matrix."""
    if not windows:
        raise ValueError("there is nothing to calibrate with; pass windows of ids, such as of text('calibration')")
    with watching(linears(decoder), see):
        for ids in windows:
            decoder.read(ids)


@dataclass(frozen=True)
class Inputs:
    """Calibration inputs of a matrix (N, K): max |x| and mean |x| of each column (K,), and a sample of rows (n, K)."""

    largest: Tensor
    mean: Tensor
    sample: Tensor


def inputs_of(decoder: nn.Module, windows: Windows) -> dict[Name, Inputs]:
    """Collect the calibration inputs of each matrix along these windows, without the first token of each window.

    The first token's hidden states are many times larger than all others (Sun et al. 2024, arXiv 2402.17762). Where
    activations are rounded, each token has its own scale, so the first one must not decide about the others.
    """
    seen: dict[Name, list[tuple[Tensor, Tensor, Tensor]]] = {}

    def see(name: Name, x: Tensor) -> None:
        x = x[1:].to(working_dtype(x.dtype))
        summary = x.abs().amax(0), x.abs().mean(0), x[:: max(1, len(x) // SAMPLE)]
        seen.setdefault(name, []).append(summary)

    watch(decoder, windows, see)
    each = max(1, SAMPLE // len(windows))
    return {name: _together(parts, each) for name, parts in seen.items()}


def _together(parts: Sequence[tuple[Tensor, Tensor, Tensor]], each: int) -> Inputs:
    largest, mean, samples = zip(*parts, strict=True)
    rows = [x[torch.linspace(0, len(x) - 1, min(each, len(x))).long()] for x in samples]
    return Inputs(torch.stack(largest).amax(0), torch.stack(mean).mean(0), torch.cat(rows))


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
    damp: float = 0.01,
    act_order: bool = False,
    block: int = 128,
) -> Integers:
    """GPTQ: round weight (N, K) with Hessian H (K, K) to integers as `quantize` does, but with compensated codes.

    per: "row" or a group size. damp: share of the mean diagonal that is added to H's diagonal; multiplied by 10 until
    the Cholesky factor exists.
    act_order: process columns in descending order of input size. A group's scale is fitted when its first column is
    reached, to the weights compensated so far; with act_order, to the original weights.
    block: columns between two updates of all columns after them; it does not change the result.
    Raises ValueError for values that are not finite, and for a Hessian that no damping makes positive definite.
    """
    check_bits(bits)
    _check_shapes(weight, hessian, per, damp, block)
    h = hessian.to(working_dtype(hessian.dtype), copy=True)
    # 1. columns whose inputs were always zero: their weights do not matter
    dead = h.diagonal() == 0
    h.diagonal()[dead] = 1
    w = weight.detach().to(h).masked_fill(dead, 0)
    # 2. sweep over the columns in order, rounding and compensating
    order = h.diagonal().argsort(descending=True, stable=True) if act_order else torch.arange(len(h), device=h.device)
    size = w.shape[1] if per == ROW else per
    columns = _Columns(w, size, order.tolist(), lambda group: fit_grid(group, bits, kind), act_order)
    factor = inverse_factor(h[order][:, order], damp)
    block = block if per == ROW else -(-block // size) * size  # whole groups per block
    sweep(w[:, order], factor, block, columns.round)
    found = Integers(weight.shape, weight.dtype, pack(columns.codes, bits), columns.grid())
    # 3. keep rounding to nearest for the rows on which it is better
    nearest = quantize(weight, bits, per, kind)
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

    damp is multiplied by 10 until the factor exists. Raises ValueError if damp > 10 would be needed.
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


POINTS = 20  # grid points of AWQ's search over alpha in [0, 1)


def smooth_scales(largest_x: Tensor, largest_w: Tensor, alpha: float = 0.5) -> Tensor:
    """SmoothQuant's s_c = max|x_c|^alpha / max|w_c|^(1 - alpha) for K channels -> (K,).

    largest_x, largest_w: (K,), the largest inputs and weights of each channel. alpha 0 leaves all outliers in the
    activations, 1 moves them into the weights. A channel of zeros keeps s = 1.
    """
    check_values(largest_x, "the largest inputs")
    check_values(largest_w, "the largest weights")
    if not 0 <= alpha <= 1:
        raise ValueError(f"alpha lies between 0 and 1, not at {alpha}; the paper's is 0.5")
    if largest_x.shape != largest_w.shape or min(largest_x.min(), largest_w.min()) < 0:
        raise ValueError("pass x.abs().amax(0) and weight.abs().amax(0): one number of at least 0 for each channel")
    scales = largest_x**alpha / largest_w ** (1 - alpha)
    return torch.where((largest_x > 0) & (largest_w > 0), scales, 1.0)


def awq_scales(inputs: Tensor, weight: Tensor, round_to: Callable[[Tensor], Quantized], points: int = POINTS) -> Tensor:
    """AWQ's s (K,): of s = mean|x_c|^alpha for alpha = 0, 1/points, ..., the one with the smallest output error.

    inputs (n, K), weight (N, K); round_to: the rounding applied to W·diag(s). alpha 0 is plain rounding, so on these
    inputs AWQ is never worse.
    """
    check_values(inputs, "the calibration inputs")
    check_values(weight, "the weight")
    if inputs.ndim != 2 or inputs.shape[-1] != weight.shape[-1] or points < 1:
        raise ValueError(f"inputs (n, K), a weight (N, K) and points >= 1 are needed, not {tuple(inputs.shape)}, "
                         f"{tuple(weight.shape)} and {points}")  # fmt: skip
    inputs, weight = (part.detach().to(working_dtype(part.dtype)) for part in (inputs, weight))
    loud = inputs.abs().mean(0)
    loud = torch.where(loud > 0, loud, 1.0)
    tried = []
    for alpha in (i / points for i in range(points)):
        scales = loud**alpha
        scales = scales / (scales.max() * scales.min()).sqrt()  # center around 1; a common factor does not matter
        d = round_to(weight * scales).dequantize() / scales - weight
        tried.append((float((inputs @ d.T).square().mean()), scales))
    return min(tried, key=lambda pair: pair[0])[1]


@torch.no_grad()
def gptq_decoder(decoder: nn.Module, windows: Windows, format: str) -> dict[Name, Integers]:
    """Round the weights of all layers by GPTQ with act-order, layer by layer.

    Each layer is calibrated on the outputs of the rounded layers before it; within a layer, all Hessians are measured
    before anything is rounded. format: an integer format. Raises ValueError for another format and without windows.
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


SMOOTHED = ("down", "qkv", "gate_up")  # "down" first: its scales change the rows of "gate_up"
ALPHAS = {"qkv": 0.7, "gate_up": 0.7, "down": 0.5}  # SmoothQuant's alpha: share of the outliers moved into weights


def smoothed(decoder: nn.Module, inputs: Mapping[Name, Inputs], alphas: Mapping[str, float] = ALPHAS) -> nn.Module:
    """SmoothQuant: an equivalent decoder with a share alpha of the activations' outliers moved into the weights.

    alphas: by matrix name, of SMOOTHED only.
    """

    def scales(name: Name, weight: Tensor) -> Tensor:
        largest = inputs[name].largest
        return smooth_scales(largest, weight.abs().amax(0).to(largest), alphas[name[1]])

    return _each(decoder, alphas, scales)


def awq(decoder: nn.Module, inputs: Mapping[Name, Inputs], rounding: Rounding) -> nn.Module:
    """AWQ: an equivalent decoder whose columns with large inputs are scaled up, as suits this rounding best."""
    return _each(decoder, SMOOTHED, lambda name, weight: awq_scales(inputs[name].sample, weight, rounding))


def _each(decoder: nn.Module, names: Collection[str], scales_of: Callable[[Name, Tensor], Tensor]) -> nn.Module:
    if unknown := set(names) - set(SMOOTHED):
        raise ValueError(f"{', '.join(sorted(unknown))} cannot be scaled; choose from {', '.join(SMOOTHED)}")
    made = sharing_copy(decoder)
    for number, layer in enumerate(made.layers):
        for name in (name for name in SMOOTHED if name in names):
            scale(layer, name, scales_of((number, name), getattr(layer, name).weight))
    return made


def scale(layer: nn.Module, name: str, scales: Tensor) -> None:
    """Multiply the columns of one matrix (N, K) by scales (K,) and divide its inputs by them, all in new tensors.

    The division is folded into whatever produces the inputs: the norm before "qkv" and "gate_up"; for "down", the "up"
    rows of "gate_up". "out" cannot be scaled this way, since one value head feeds several of its columns.
    """
    linear = getattr(layer, name)
    linear.weight = _weight(linear.weight.double() * scales.double(), linear.weight)
    if name == "down":
        gate, up = layer.gate_up.weight.double().chunk(2)
        layer.gate_up.weight = _weight(torch.cat([gate, up / scales.double()[:, None]]), linear.weight)
    else:
        norm = "attention_norm" if name == "qkv" else "mlp_norm"
        old = getattr(layer, norm)
        setattr(layer, norm, _weight(old.double() / scales.double(), old))


def _weight(values: Tensor, like: Tensor) -> nn.Parameter:
    return nn.Parameter(values.to(like.dtype), requires_grad=False)
