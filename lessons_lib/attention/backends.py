"""Which kernels behind scaled_dot_product_attention run here, and what the others say (lesson 04)."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

BACKENDS = ("MATH", "FLASH_ATTENTION", "EFFICIENT_ATTENTION", "CUDNN_ATTENTION")
EMPTY = ("not used because:", "has been runtime disabled")  # a heading; a backend that was not asked for


@dataclass(frozen=True)
class Outcome:
    """One backend asked for by name: its output, or None and what was said: reasons first, then the error."""

    backend: str
    output: Tensor | None
    refusal: str = ""

    @property
    def ran(self) -> bool:
        """Whether it gave an output."""
        return self.output is not None


def attempts(
    q: Tensor, keys: Tensor, values: Tensor, backends: Sequence[str] = BACKENDS, **options: Any
) -> list[Outcome]:
    """Run F.scaled_dot_product_attention(q, keys, values, **options) with each backend alone.

    q (b, H, T, d), keys (b, H, S, d), values (b, H, S, d_v), as that function takes them -> outputs (b, H, T, d_v).
    backends: names of torch.nn.attention.SDPBackend; ValueError for one that torch does not know.
    """
    if unknown := [name for name in backends if name not in SDPBackend.__members__]:
        raise ValueError(f"torch has no backend {', '.join(unknown)}; choose from {', '.join(BACKENDS)}")
    return [_attempt(name, lambda: F.scaled_dot_product_attention(q, keys, values, **options)) for name in backends]


def _attempt(name: str, attend: Callable[[], Tensor]) -> Outcome:
    """The reasons of a refusal are warnings; the error itself only says that nothing is left."""
    with warnings.catch_warnings(record=True, action="always") as said:
        try:
            with sdpa_kernel(SDPBackend.__members__[name]):
                return Outcome(name, attend())
        except RuntimeError as error:
            reasons = [*(str(warning.message) for warning in said), str(error)]
    return Outcome(name, None, " ".join(dict.fromkeys(filter(None, map(first_sentence, reasons)))))


def first_sentence(text: str) -> str:
    """What a message of torch says first, without its source line; nothing of one that is in EMPTY, or is empty.

    >>> first_sentence("Both fused kernels do not support non-zero dropout. (Triggered internally at sdp.h:241.)")
    'Both fused kernels do not support non-zero dropout.'
    """
    text = text.partition("(Triggered")[0].strip()
    return text.partition(". ")[0].rstrip(".") + "." if text and not any(said in text for said in EMPTY) else ""
