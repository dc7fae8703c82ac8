"""Which kernels of scaled_dot_product_attention run here, and why the others do not (lesson 04)."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

BACKENDS = ("MATH", "FLASH_ATTENTION", "EFFICIENT_ATTENTION", "CUDNN_ATTENTION")  # names in SDPBackend
EMPTY = ("not used because:", "has been runtime disabled")  # messages without a reason, which are dropped


@dataclass(frozen=True)
class Outcome:
    """The result of one backend: its output, or None and torch's reasons, the error last."""

    backend: str
    output: Tensor | None
    refusal: str = ""

    @property
    def ran(self) -> bool:
        """Whether the backend returned an output."""
        return self.output is not None


def attempts(q: Tensor, keys: Tensor, values: Tensor, **options: Any) -> list[Outcome]:
    """Run F.scaled_dot_product_attention(q, keys, values, **options) with each backend alone.

    q (b, H, T, d), keys (b, H, S, d), values (b, H, S, d_v), as that function takes them -> outputs (b, H, T, d_v).
    """
    return [_attempt(name, lambda: F.scaled_dot_product_attention(q, keys, values, **options)) for name in BACKENDS]


def _attempt(name: str, attend: Callable[[], Tensor]) -> Outcome:
    """Run one backend. torch reports its reasons as warnings; its error is only that no kernel is left."""
    with warnings.catch_warnings(record=True, action="always") as said:
        try:
            with sdpa_kernel(SDPBackend.__members__[name]):
                return Outcome(name, attend())
        except RuntimeError as error:
            reasons = [*(str(warning.message) for warning in said), str(error)]
    return Outcome(name, None, " ".join(dict.fromkeys(filter(None, map(first_sentence, reasons)))))


def first_sentence(text: str) -> str:
    """First sentence of a torch message, without the source location; "" for an empty message or one in EMPTY.

    >>> first_sentence("Both fused kernels do not support non-zero dropout. (Triggered internally at sdp.h:241.)")
    'Both fused kernels do not support non-zero dropout.'
    """
    text = text.partition("(Triggered")[0].strip()
    return text.partition(". ")[0].rstrip(".") + "." if text and not any(said in text for said in EMPTY) else ""
