"""SmoothQuant (lesson 10): moves part of the activations' outliers into the weights, so that both round well.

(x / s)·(W·diag(s))ᵀ equals x Wᵀ, but its factors are easier to round. 1/s is folded into the norm before the matrix, so
all matrices that read this norm share s. AWQ scales a decoder in the same way.
Source: Xiao et al. 2022, arXiv 2211.10438.
"""

from collections.abc import Callable, Collection, Mapping

import torch
from torch import Tensor, nn

from lessons_lib.quantization.calibration import Inputs, Name
from lessons_lib.quantization.linear import sharing_copy

SMOOTHED = ("down", "qkv", "gate_up")  # "down" first: its scales change the rows of "gate_up"
ALPHAS = {"qkv": 0.7, "gate_up": 0.7, "down": 0.5}  # SmoothQuant's alpha: share of the outliers moved into weights
QUIETEST = 1e-6  # of the loudest channel: quieter ones count as this loud, else their s would leave float16's range


def smooth_scales(largest_x: Tensor, largest_w: Tensor, alpha: float = 0.5) -> Tensor:
    """SmoothQuant's s_c = max|x_c|^alpha / max|w_c|^(1 - alpha) for K channels -> (K,).

    largest_x, largest_w: (K,), the largest inputs and weights of each channel. alpha 0 leaves all outliers in the
    activations, 1 moves them into the weights. A channel of zeros keeps s = 1.
    """
    if not 0 <= alpha <= 1:
        raise ValueError(f"alpha lies between 0 and 1, not at {alpha}; the paper's is 0.5")
    if largest_x.shape != largest_w.shape or min(largest_x.min(), largest_w.min()) < 0:
        raise ValueError("pass x.abs().amax(0) and weight.abs().amax(0): one number of at least 0 for each channel")
    scales = largest_x.clamp_min(largest_x.max() * QUIETEST) ** alpha / largest_w ** (1 - alpha)
    return torch.where((largest_x > 0) & (largest_w > 0), scales, 1.0)


def smoothed(decoder: nn.Module, inputs: Mapping[Name, Inputs], alphas: Mapping[str, float]) -> nn.Module:
    """SmoothQuant: an equivalent decoder with a share alpha of the activations' outliers moved into the weights.

    alphas: by matrix name, of SMOOTHED only.
    """

    def scales(name: Name, weight: Tensor) -> Tensor:
        largest = inputs[name].largest
        return smooth_scales(largest, weight.abs().amax(0).to(largest), alphas[name[1]])

    return scaled(decoder, alphas, scales)


def scaled(decoder: nn.Module, names: Collection[str], scales_of: Callable[[Name, Tensor], Tensor]) -> nn.Module:
    """An equivalent decoder whose matrices of these names are scaled. scales_of: (matrix, weight (N, K)) -> s (K,)."""
    if unknown := set(names) - set(SMOOTHED):
        raise ValueError(f"{', '.join(sorted(unknown))} cannot be scaled; choose from {', '.join(SMOOTHED)}")
    made = sharing_copy(decoder)
    for number, layer in enumerate(made.layers):
        for name in (name for name in SMOOTHED if name in names):
            scale(layer, name, scales_of((number, name), getattr(layer, name).weight))
    return made


def scale(layer: nn.Module, name: str, scales: Tensor) -> None:
    """Multiply the columns of one matrix (N, K) by scales (K,) and divide its inputs by them, all in new tensors.

    The division is folded into the weights before: the norm for "qkv" and "gate_up", the "up" rows of "gate_up" for
    "down". "out" cannot be scaled this way, since one value head feeds several of its columns.
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
