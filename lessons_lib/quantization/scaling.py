"""Scaling channels before rounding (lesson 10): (x / s)·(W·diag(s))ᵀ is x Wᵀ, but its parts are easier to round.

AWQ (Lin et al. 2023, arXiv 2306.00978) is for weights alone: channels with large inputs are scaled up, so that
their weights are rounded more finely. SmoothQuant (Xiao et al. 2022, arXiv 2211.10438) is for weights and
activations: part of the activations' outliers moves into the weights. 1/s belongs into the norm before the matrix,
whose readers (q, k and v; gate and up) then share s: rounding apart, the layer computes what it did.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from lessons_lib.quantization.formats import Quantized, check_values, working_dtype

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


def awq_scales(inputs: Tensor, weight: Tensor, quantize: Callable[[Tensor], Quantized], points: int = POINTS) -> Tensor:
    """Try s = mean|x_c|^alpha for alpha = 0, 1/points, ... -> the s (K,) whose rounded weight serves best.

    inputs (n, K) of the matrix (N, K), quantize: what rounds W·diag(s). alpha 0 is rounding to the nearest, so on
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
        d = quantize(weight * scales).dequantize() / scales - weight
        tried.append((float((inputs @ d.T).square().mean()), scales))
    return min(tried, key=lambda pair: pair[0])[1]
