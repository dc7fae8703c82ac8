"""What cannot be quantized is refused here, in one sentence that says what to do (lesson 10)."""

from torch import Tensor

TENSOR, ROW = (
    "tensor",
    "row",
)  # one scale for all, or for each row: an output channel of weights, a token of activations


def check_values(x: Tensor, what: str = "the tensor") -> None:
    """Raises ValueError unless x has finite floating-point values."""
    if not x.is_floating_point() or x.is_complex():
        raise ValueError(f"{what} holds {x.dtype}; only floating-point values can be quantized: cast it with .float()")
    if x.numel() == 0 or x.ndim == 0:
        raise ValueError(f"{what} has shape {tuple(x.shape)}; at least one row with one value is needed")
    if not x.isfinite().all():
        raise ValueError(f"{what} holds {int((~x.isfinite()).sum())} NaN or infinite values; mend or mask them first")


def check_bits(bits: int) -> None:
    """Raises ValueError for a width that has no format here."""
    if not (isinstance(bits, int) and 2 <= bits <= 8):
        raise ValueError(f"{bits!r} bits are not supported; choose a whole number from 2 to 8")


def check_cpu(x: Tensor) -> None:
    """Raises ValueError for a tensor that the int4 kernels of the CPU cannot read."""
    if x.device.type != "cpu":
        raise ValueError(
            f"the int4 kernel is one of the CPU and the tensor is on {x.device}; use Plain, or quantize it on a CPU"
        )


def blocks(x: Tensor, per: str | int) -> Tensor:
    """x (..., K) -> (blocks, size), one scale each: per "tensor", per "row", or for so many values of the last axis.

    Raises ValueError for another per, and a group that does not divide K, as a scale must not reach over two rows.
    """
    if per == TENSOR:
        return x.reshape(1, -1)
    size = x.shape[-1] if per == ROW else per
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise ValueError(f'per is "tensor", "row" or a group size of at least 1, not {per!r}')
    if x.shape[-1] % size:
        fits = [g for g in (256, 128, 64, 32, 16, 8) if x.shape[-1] % g == 0]
        advice = f"{', '.join(map(str, fits))} would" if fits else 'use per="row"'
        raise ValueError(f"groups of {size} do not divide rows of {x.shape[-1]} values; {advice}")
    return x.reshape(-1, size)
