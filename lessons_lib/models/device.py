"""Device and dtype of a model (every lesson): the best that this machine has, or the one asked for."""

import torch

from lessons_lib.measure.machine import DTYPES, cpu_bf16, gpu_bf16

DEVICES = ("cuda", "mps", "cpu")
NO_MEMORY = "allocate memory", "not enough memory", "out of memory"  # in a RuntimeError of torch, such as on a CPU


def pick(device: str, dtype: str) -> tuple[str, str]:
    """Device and dtype name for a lesson: `pick_device`, then `pick_dtype` for that device."""
    device = pick_device(device)
    return device, dtype_name(pick_dtype(dtype, device))


def pick_device(device: str | torch.device = "auto") -> str:
    """The device to use: "auto" -> "cuda", else "mps", else "cpu". A device given by name is checked and returned,
    "cpu:0" as "cpu".

    Raises ValueError if this machine does not have it.
    """
    device = str(device)
    present = [name for name in DEVICES if _present(name)]
    if device == "auto":
        return present[0]
    kind, _, index = device.partition(":")
    count = torch.cuda.device_count() if kind == "cuda" else 1
    if kind not in present or (index and not (index.isdigit() and int(index) < count)):
        raise ValueError(f"device {device!r} is not here; use 'auto' or one of: {', '.join(present)}.")
    return "cpu" if kind == "cpu" else device


def pick_dtype(dtype: str | torch.dtype = "auto", device: str = "cpu") -> torch.dtype:
    """The dtype to use: "auto" -> bf16 if the device computes in it, else fp16 on GPUs and fp32 on CPUs.

    Accepts "fp32", "bf16", "fp16", "fp64", torch's own names ("float32") and torch dtypes. Raises ValueError if the
    dtype is unknown or not supported by the device.
    """
    if dtype == "auto":
        return _fast_dtype(device)
    chosen = DTYPES.get(dtype) if isinstance(dtype, str) else dtype
    chosen = chosen or getattr(torch, str(dtype), None)
    if chosen not in DTYPES.values():
        raise ValueError(f"dtype {dtype!r} is not known; use 'auto' or one of: {', '.join(DTYPES)}.")
    if not _has(chosen, device):
        name, other = dtype_name(chosen), dtype_name(_fast_dtype(device))
        raise ValueError(f"dtype '{name}' is not supported by the device '{device}'; use '{other}'.")
    return chosen


def dtype_name(dtype: torch.dtype) -> str:
    """The name of a dtype in tables and arguments: torch.bfloat16 -> "bf16"."""
    return next(name for name, known in DTYPES.items() if known == dtype)


def out_of_memory(error: Exception) -> bool:
    """Whether a GPU, or the CPU's allocator, had no memory left."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in NO_MEMORY)


def _present(kind: str) -> bool:
    if kind == "cpu":
        return True
    return torch.cuda.is_available() if kind == "cuda" else torch.backends.mps.is_available()


def _fast_dtype(device: str) -> torch.dtype:
    if device.startswith("cpu"):
        return torch.bfloat16 if cpu_bf16() else torch.float32
    return torch.bfloat16 if gpu_bf16(device) else torch.float16


def _has(dtype: torch.dtype, device: str) -> bool:
    if device.startswith("cuda"):
        return dtype != torch.bfloat16 or gpu_bf16(device)
    return not (device.startswith("mps") and dtype == torch.float64)
