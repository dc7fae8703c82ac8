"""Effective sparsity (lesson 12): how many entries of a row matter, and the most that skipping the others can gain.

A row holds n weights that are at least 0 and sum to 1, such as attention weights. `allowed` (bool, broadcast to the
rows) marks the entries that exist: those hidden by a causal mask do not count as sparsity. Results are float64, one
value per row.
Sources: mass kept by the largest, Liu et al. 2023 (Deja Vu, arXiv 2310.17157) and Sun et al. 2024 (TriForce, arXiv
2404.11912); gate first, Lee et al. 2024 (CATS, arXiv 2404.08763); inputs, Liu et al. 2024 (TEAL, arXiv 2408.14690).
"""

from statistics import NormalDist

import torch
from torch import Tensor

from lessons_lib.measure.config import ModelConfig

ROUNDING = 1e-9  # tolerance when sums of weights are compared with a mass
KNOWN = ("mlp", "gate first", "intermediate", "inputs")


def share_below(weights: Tensor, threshold: float) -> Tensor:
    """T_eps: share of a row's weights below a fixed threshold, (..., n) -> (...)."""
    return (rows(weights)[0] < threshold).double().mean(-1)


def kept_count(weights: Tensor, mass: float, allowed: Tensor | None = None) -> Tensor:
    """k: number of largest weights needed to hold `mass` of a row, int64."""
    w, _, n = rows(weights, allowed)
    held = w.sort(-1, descending=True).values.cumsum(-1)
    return torch.minimum((held < mass - ROUNDING).sum(-1) + 1, n)


def mass_sparsity(weights: Tensor, eps: float, allowed: Tensor | None = None) -> Tensor:
    """M_eps = 1 - k/n: share of a row that can be dropped if at most eps of its mass may be lost."""
    return 1 - kept_count(weights, 1 - eps, allowed) / rows(weights, allowed)[2].double()


def top_mass(weights: Tensor, share: float, allowed: Tensor | None = None) -> Tensor:
    """Mass held by the largest `share` of a row's weights, at least one weight."""
    w, allowed, _ = rows(weights, allowed)
    return (w * highest(w, share, allowed)).sum(-1)


def mass_sparsity_of_normal(std: float, eps: float) -> float:
    """M_eps of a very long softmax row whose logits are normal with standard deviation `std`: Phi(std - z(1 - eps)).

    The largest share x of log-normal weights holds the mass Phi(std + z(x)). std 0 is uniform: M_eps = eps. Needs 0 <
    eps < 1.
    """
    normal = NormalDist()
    return normal.cdf(std - normal.inv_cdf(1 - eps))


def without_first(weights: Tensor, sinks: int, allowed: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Drop the first `sinks` entries of each row and rescale to sum 1 -> (weights, allowed), each (..., n - sinks).

    A row with nothing left becomes NaN.
    """
    w, allowed, _ = rows(weights, allowed)
    w, allowed = w[..., sinks:], allowed[..., sinks:]
    return w / w.sum(-1, keepdim=True), allowed


def highest(scores: Tensor, share: float, allowed: Tensor) -> Tensor:
    """Mask (..., n) of the ceil(share n) highest scores among the allowed entries of each row, at least one."""
    if not 0 <= share <= 1:
        raise ValueError(f"A share of a row is kept, from 0 to 1, not {share}.")
    keep = (share * allowed.sum(-1, keepdim=True).double() - ROUNDING).ceil().clamp(min=1)
    order = scores.masked_fill(~allowed, -torch.inf).argsort(dim=-1, descending=True, stable=True)
    first = torch.arange(scores.shape[-1], device=scores.device) < keep
    return torch.zeros_like(first).expand(scores.shape).scatter(-1, order, first.expand(scores.shape)) & allowed


def threshold(values: Tensor, sparsity: float) -> float:
    """t such that a share `sparsity` of |values| (any shape) is at most t; 0 for a sparsity of 0."""
    if not 0 <= sparsity < 1 or not values.numel():
        raise ValueError(f"Some values and a sparsity from 0 to below 1 make a threshold, not {sparsity}.")
    rank = round(sparsity * values.numel())
    return values.abs().flatten().kthvalue(rank).values.item() if rank else 0.0


def rows(weights: Tensor, allowed: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Check rows -> weights (..., n) in float64, 0 where not allowed; allowed (..., n); entries n (...) of each row.

    Raises ValueError for NaN or negative weights, and for sums over allowed entries other than 1.
    """
    if not weights.is_floating_point() or not weights.dim() or not weights.numel():
        raise ValueError(f"Rows of weights are floats (..., n) with n > 0, not {weights.dtype} {tuple(weights.shape)}.")
    allowed = torch.ones_like(weights, dtype=torch.bool) if allowed is None else allowed.expand(weights.shape)
    w = weights.double().masked_fill(~allowed, 0.0)
    if not (w >= 0).all() or not ((w.sum(-1) - 1).abs() < 1e-3).all():  # a NaN is neither
        raise ValueError("Weights must be at least 0 and sum to 1 over what is allowed; pass a softmax and its mask.")
    return w, allowed, allowed.sum(-1)


def skippable(shape: ModelConfig, known: str = "mlp") -> float:
    """Share of a decode step's weights of which a fraction S can be skipped, given sparsity S.

    known: what is known in advance. "mlp": the active neurons; "gate first": the gate's output, so the gate is read
    whole; "intermediate": the input of W_down, so that only W_down skips; "inputs": zeros in the input of every matrix
    of the layers, which skips those columns. The head is always read whole. "gate first" needs a gated MLP.
    """
    possible = [name for name in KNOWN if name != "gate first" or shape.gated]
    if known not in possible:
        raise ValueError(f"{shape.name} cannot know {known!r}; choose from {', '.join(possible)}.")
    matrices = 3 if shape.gated else 2
    mlp = shape.num_layers * matrices * shape.hidden_size * shape.intermediate_size
    parts = {"mlp": mlp, "gate first": mlp * 2 / 3, "intermediate": mlp / matrices, "inputs": shape.layer_weights}
    return parts[known] / shape.weights


def attention_share(shape: ModelConfig, cached: int) -> float:
    """Share of a decode step's bytes that are keys and values of `cached` tokens; cache and weights of one dtype."""
    cache = shape.kv_elements(cached)
    return cache / (cache + shape.weights)


def speedup(share: float, sparsity: float) -> float:
    """Amdahl's law (1967): speedup if `sparsity` of a `share` of the time is skipped, 1 / (1 - share sparsity)."""
    if not (0 <= share <= 1 and 0 <= sparsity <= 1) or share * sparsity == 1:
        raise ValueError(f"Share and sparsity are from 0 to 1 and leave something to do, not {share} and {sparsity}.")
    return 1 / (1 - share * sparsity)


def union(sparsity: float, width: int) -> float:
    """Share needed by at least one of `width` tokens with independent patterns of sparsity S: 1 - S^w."""
    return 1 - sparsity**width
