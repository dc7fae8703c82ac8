"""Do counts follow a law? Pearson's chi-square test (lesson 06)."""

from __future__ import annotations

import torch
from torch import Tensor


def chi_square(seen: Tensor, law: Tensor) -> tuple[float, float]:
    """seen: counts, law: their expected shares, sum 1, tensors of one shape, any -> (statistic, chance).

    chance: probability of a statistic at least as large if the counts follow the law. Reliable where some five of each
    are expected. ValueError if something was seen that the law rules out, or if shapes differ.
    """
    if seen.shape != law.shape:
        raise ValueError(f"counts of shape {tuple(seen.shape)} do not fit a law of shape {tuple(law.shape)}")
    if bool((seen[law == 0] > 0).any()):
        raise ValueError("something was counted that the law rules out; no statistic is needed to refuse it")
    possible = law > 0
    expected = law[possible].double() * float(seen.sum())
    statistic = ((seen[possible].double() - expected) ** 2 / expected).sum()
    freedom = torch.tensor((int(possible.sum()) - 1) / 2, dtype=torch.float64)
    return float(statistic), float(torch.special.gammaincc(freedom, statistic / 2))
