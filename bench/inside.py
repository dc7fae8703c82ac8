"""What lies inside a compiled step: which of its kernels do what, and two other ways to attend that were tried."""

import torch
from torch import Tensor

from lessons_lib.compiler import kept_in_memory
from lessons_lib.models.decoder import attend

PARTS = {  # as of `profiler.PARTS`: one row attends in the compiler's loop, several by two batched products or a kernel
    "attention": r"bmm|softmax|::attend_few_rows",
    "products": r"gemm|addmm|::mm$|qlinear|::multiply_grouped",
    "norms, rotation": r"^graph_",
}


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
