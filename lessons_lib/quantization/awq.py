"""AWQ (lesson 10): scales up the channels with large inputs, so that their weights are rounded more finely.

For weight-only formats. The scales are those of SmoothQuant's equivalence, (x / s)·(W·diag(s))ᵀ = x Wᵀ, found by a
search over one exponent.
Source: Lin et al. 2023, arXiv 2306.00978.
"""

from collections.abc import Callable, Mapping

from torch import Tensor, nn

from lessons_lib.quantization.calibration import Inputs, Name
from lessons_lib.quantization.formats import Rounding
from lessons_lib.quantization.integers import Quantized, working_dtype
from lessons_lib.quantization.smoothquant import QUIETEST, SMOOTHED, scaled

POINTS = 20  # grid points of AWQ's search over alpha in [0, 1)


def awq_scales(inputs: Tensor, weight: Tensor, round_to: Callable[[Tensor], Quantized]) -> Tensor:
    """AWQ's s (K,): of s = mean|x_c|^alpha for alpha = 0, 1/20, ..., 19/20, the one with the smallest output error.

    inputs (n, K), weight (N, K); round_to: the rounding applied to W·diag(s). alpha 0 is plain rounding, so on these
    inputs AWQ is never worse.
    """
    inputs, weight = (part.detach().to(working_dtype(part.dtype)) for part in (inputs, weight))
    loud = inputs.abs().mean(0)
    loud = loud.clamp_min(float(loud.max() * QUIETEST) or 1.0)  # 1 if all inputs are zero
    tried = []
    for alpha in (i / POINTS for i in range(POINTS)):
        scales = loud**alpha
        scales = scales / (scales.max() * scales.min()).sqrt()  # center around 1; a common factor does not matter
        d = round_to(weight * scales).dequantize() / scales - weight
        tried.append((float((inputs @ d.T).square().mean()), scales))
    return min(tried, key=lambda pair: pair[0])[1]


def awq(decoder: nn.Module, inputs: Mapping[Name, Inputs], rounding: Rounding) -> nn.Module:
    """AWQ: an equivalent decoder whose columns with large inputs are scaled up, as suits this rounding best."""
    return scaled(decoder, SMOOTHED, lambda name, weight: awq_scales(inputs[name].sample, weight, rounding))
