"""Rounding that looks at calibration inputs first (lesson 10): GPTQ, AWQ and SmoothQuant.

**GPTQ** (Frantar et al. 2022, arXiv 2210.17323, after Optimal Brain Surgeon) rounds one column of a matrix after
another and lets later columns make up for the error. A layer's outputs on calibration inputs change by tr(d H dᵀ),
where d is what rounding did to W and H = (2/n) Σ x xᵀ. With (H + damping)^-1 = UᵀU, U upper triangular, the error e of
column j, divided by U_jj, times row j of U is what the columns after j best subtract. It is a greedy choice: usually
far better than rounding to the nearest, but that is no theorem (a test keeps one row of three columns on which `sweep`
is worse). So `gptq` keeps rounding to the nearest for rows on which that is better: rows share no error.

**Scaling** uses that (x / s)·(W·diag(s))ᵀ is x Wᵀ, but its parts are easier to round. AWQ (Lin et al. 2023,
arXiv 2306.00978) is for weights alone: channels with large inputs are scaled up, so that their weights are rounded more
finely. SmoothQuant (Xiao et al. 2022, arXiv 2211.10438) is for weights and activations: part of the activations'
outliers moves into the weights. 1/s belongs into the norm before the matrix, whose readers share s.

The decoders here are `models.Decoder`s. A matrix is named (number of its layer, "qkv" | "out" | "gate_up" | "down"),
the LM head (number of layers, "head").
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
SAMPLE = 256  # rows of a matrix's inputs that are kept
Name = tuple[int, str]  # of a matrix
Windows = Sequence[Sequence[int]]  # ids that are read together, each from its own beginning


def linears(decoder: nn.Module, head: bool = True) -> dict[Name, nn.Module]:
    """The linear layers of a decoder by name, in the order of a forward pass. head: the LM head, too."""
    found = {(i, name): getattr(layer, name) for i, layer in enumerate(decoder.layers) for name in MATRICES}
    return found | ({(len(decoder.layers), HEAD): decoder.head} if head else {})


@contextmanager
def watching(modules: Mapping[Name, nn.Module], see: Callable[[Name, Tensor], None]) -> Iterator[None]:
    """While this is open, see(name, x (T, K)) is given what each of these modules is called with."""

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
    """Run the windows through the decoder and show what each matrix reads, x (T, K). ValueError without windows."""
    if not windows:
        raise ValueError("there is nothing to calibrate with; pass windows of ids, such as of text('calibration')")
    with watching(linears(decoder), see):
        for ids in windows:
            decoder.read(ids)


@dataclass(frozen=True)
class Inputs:
    """What a matrix (N, K) read: max |x| and mean |x| of each column (K,), and some of the rows (n, K)."""

    largest: Tensor
    mean: Tensor
    sample: Tensor


def inputs_of(decoder: nn.Module, windows: Windows) -> dict[Name, Inputs]:
    """What each matrix reads along these windows, their first tokens left out.

    A first token's states are many times larger than any other's (Sun et al. 2024, arXiv 2402.17762), and rounded by
    scales of its own wherever activations are: it must not decide about the others.
    ValueError without windows.
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


POINTS = 20  # of AWQ's grid over alpha in [0, 1)


def smooth_scales(largest_x: Tensor, largest_w: Tensor, alpha: float = 0.5) -> Tensor:
    """s_c = max|x_c|^alpha / max|w_c|^(1 - alpha) from the largest inputs and weights of K channels -> (K,).

    alpha 0 leaves all outliers to the activations, 1 moves them to the weights. A channel of zeros keeps s = 1.
    Raises ValueError for values that are not finite, negative maxima, unequal shapes and alpha out of [0, 1].
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
    """Try s = mean|x_c|^alpha for alpha = 0, 1/points, ... -> the s (K,) whose rounded weight serves best.

    inputs (n, K) of the matrix (N, K), round_to: what rounds W·diag(s). alpha 0 is rounding to the nearest, so on
    these inputs AWQ is never worse. Raises ValueError for values that are not finite, shapes that do not fit,
    and no points.
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
        scales = scales / (scales.max() * scales.min()).sqrt()  # around 1: a common factor changes nothing but range
        d = round_to(weight * scales).dequantize() / scales - weight
        tried.append((float((inputs @ d.T).square().mean()), scales))
    return min(tried, key=lambda pair: pair[0])[1]


@torch.no_grad()
def gptq_decoder(decoder: nn.Module, windows: Windows, format: str) -> dict[Name, Integers]:
    """Every layer's weights rounded by GPTQ with act-order, layer after layer.

    The matrices of one layer look at the inputs that the layer, unrounded, gives them behind layers that are rounded.
    ValueError for other formats than integers, no windows, and as `gptq`.
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

        # 1. Hessians of what this layer's matrices read
        with watching(matrices, see):
            for x, *others in calls:
                layer(x, *others)
                count += len(x)
        # 2. round them
        found = {
            name: gptq(matrices[name].weight, total / count, act_order=True, **options) for name, total in sums.items()
        }
        # 3. the next layer reads what the rounded layer gives
        after = sharing_copy(layer)
        for (_, name), codes in found.items():
            setattr(after, name, FakeQuantLinear(codes))
        calls = [(after(x, *others), *others) for x, *others in calls]
        rounded |= found
    return rounded


def first_layer_calls(decoder: nn.Module, windows: Windows) -> list[tuple]:
    """What the first layer is called with along each window: states (T, D), and further arguments of a layer."""
    calls: list[tuple] = []
    handle = decoder.layers[0].register_forward_pre_hook(lambda _, args: calls.append(args))
    try:
        for ids in windows:
            decoder.read(ids)
    finally:
        handle.remove()
    return calls


SMOOTHED = ("down", "qkv", "gate_up")  # "down" first: its scales change the rows of "gate_up"
ALPHAS = {"qkv": 0.7, "gate_up": 0.7, "down": 0.5}  # share of the outliers that weights take over


def smoothed(decoder: nn.Module, inputs: Mapping[Name, Inputs], alphas: Mapping[str, float] = ALPHAS) -> nn.Module:
    """SmoothQuant: a decoder that computes the same, outliers of activations moved into weights, alpha of them.

    ValueError for matrices not SMOOTHED, and as `smooth_scales`: alpha out of [0, 1], values that are not finite.
    """

    def scales(name: Name, weight: Tensor) -> Tensor:
        largest = inputs[name].largest
        return smooth_scales(largest, weight.abs().amax(0).to(largest), alphas[name[1]])

    return _each(decoder, alphas, scales)


def awq(decoder: nn.Module, inputs: Mapping[Name, Inputs], rounding: Rounding) -> nn.Module:
    """AWQ: a decoder that computes the same, columns of large inputs made larger, as serves this rounding best.

    ValueError as `awq_scales`, and as the rounding has it.
    """
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
    """Multiply the columns of one matrix (N, K) by scales (K,) and divide what it reads by them, all in new tensors.

    Inputs are divided where they are made: in the norm before "qkv" and "gate_up", in the rows of "gate_up" that make
    the second factor of what "down" reads. "out" is left alone, since one value head serves several of its columns.
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
