"""Where the time of a compiled step goes, by its kernels; and two other ways to attend that were tried in it."""

from collections import Counter
from collections.abc import Callable

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from lessons_lib.compiling import kept_in_memory
from lessons_lib.measure.clock import in_turn
from lessons_lib.models.kernels import attend

REPEATS = 40
PARTS = {  # of a kernel's name, the first that fits -> what it does
    "gemm": "products", "addmm": "products", "aten::mm": "products", "qlinear": "products",
    "bmm": "attention", "softmax": "attention",
    "graph_": "norms, rotation, rounding of inputs",
}  # fmt: skip


def parts(step: Callable[[], object], repeats: int = REPEATS) -> dict[str, float]:
    """Seconds of each part of a compiled step, called once before; what no kernel takes lies between them."""
    whole = in_turn({"step": step}, repeats=repeats)["step"].median
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        for _ in range(repeats):
            step()
    found = Counter({"whole": whole})
    for event in seen.key_averages():
        if part := part_of(event.key):
            found[part] += event.self_cpu_time_total / 1e6 / repeats
    return found | {"between kernels": 2 * whole - found.total()}


def part_of(kernel: str) -> str | None:
    """What a kernel of this name does in a step; None for what is no kernel."""
    return next((part for mark, part in PARTS.items() if mark in kernel), None)


def by_kernel(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    """As `attend_by_products`, by scaled_dot_product_attention."""
    return attend(q.contiguous(), keys, values, torch.zeros_like(mask, dtype=q.dtype).masked_fill(~mask, -torch.inf))


def by_sums(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    """As `attend_by_products`, both products loops of the compiler's: over entries, and over channels."""
    heads, rows, dim = q.shape
    folded = kept_in_memory(q.to(torch.promote_types(q.dtype, torch.float32))).view(len(keys), -1, dim)
    turned = kept_in_memory(keys.transpose(1, 2))
    scores = (folded[..., None] * turned[:, None]).sum(2).view(heads, rows, -1) * dim**-0.5
    weights = kept_in_memory(scores.masked_fill(~mask, -torch.inf).softmax(-1)).view(*folded.shape[:2], -1)
    return (weights[..., None] * values[:, None]).sum(2).to(q.dtype).view(heads, rows, dim)
