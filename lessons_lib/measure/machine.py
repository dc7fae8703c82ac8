"""Which machine this is: for a lesson's first output, for stored measurements and for raw results."""

from __future__ import annotations

import os
import platform
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

PACKAGES = ("torch", "transformers", "numpy")
QUIET = 0.75  # load over cores below which a lesson begins: its own imports add some, and it says what it finds then


def cpu_name() -> str:
    """The processor's name as the system tells it, such as 'AMD EPYC'."""
    named = (line.split(":", 1)[1].strip() for line in _cpuinfo().splitlines() if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine()


def device_name(device: Any = "cpu") -> str:
    """Name of the CPU or of the GPU that `device` means; torch's error for a GPU that is not there."""
    kind = str(device).split(":")[0]
    if kind in ("cuda", "xpu"):
        return getattr(torch, kind).get_device_name(device)
    return cpu_name() if kind == "cpu" else f"{kind} on {cpu_name()}"


def load() -> float | None:
    """Processes that want to run, averaged over the last minute; None where the system does not say."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None


def load_warning(load_now: float | None, share: float = 1.0) -> str:
    """A sentence if more processes want to run than this share of the cores, whose times mean little; else "".

    A parallel region waits for its slowest thread: one busy process beside it makes it up to nine times slower.
    """
    cores = os.cpu_count() or 1
    if load_now is None or load_now <= share * cores:
        return ""
    return f"Other programs load this machine's {cores} cores ({load_now}): expect slow and noisy times."


def settled(patience: float = 180.0, pause: float = 5.0) -> bool:
    """Wait, at most `patience` seconds, until the machine is QUIET; whether it came to that.

    What ran just before still counts in the average of the last minute.
    """
    deadline = time.monotonic() + patience
    while load_warning(load(), QUIET):
        if time.monotonic() + pause > deadline:
            return False
        time.sleep(pause)
    return True


def gpu_bf16(device: Any) -> bool:
    """True if a GPU multiplies bf16 itself. Not assumed of Apple's, which do so only from the M2 on."""
    if str(device).startswith("cuda"):
        with torch.cuda.device(device):
            return torch.cuda.is_bf16_supported(including_emulation=False)
    return not str(device).startswith("mps")


def cache_bytes(device: Any = "cpu") -> int:
    """Bytes of the last-level cache; 32 MiB where it cannot be found out. Errors as `device_name`."""
    if str(device).startswith("cuda"):
        return torch.cuda.get_device_properties(device).L2_cache_size
    found = Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")
    sizes = [int(text[:-1]) * 2**10 for path in found if (text := path.read_text().strip()).endswith("K")]
    return max(sizes, default=32 * 2**20)


def host(device: Any = "cpu") -> dict[str, Any]:
    """What to store beside measurements; no name of a person or a network."""
    return {
        "cpu": cpu_name(),
        "instructions": instructions(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": device_name(device),
        "system": f"{platform.system()} {platform.machine()}",
        "load": load(),
    }


def instructions() -> str:
    """The widest vectors that torch uses here, and whether the processor multiplies bf16: "AVX512 bf16", "AVX2"."""
    known = torch.backends.cpu.get_cpu_capability()
    return f"{known} bf16" if cpu_bf16() else known


def cpu_bf16() -> bool:
    """True where the processor multiplies bf16 itself; elsewhere emulated products gain nothing over fp32.

    torch.ops.mkldnn._is_mkldnn_bf16_supported does not tell: it is True for any AVX512.
    """
    if platform.machine().lower() in ("aarch64", "arm64"):
        return " bf16" in _cpuinfo()  # Apple's CPUs: no flag to read here, so fp32
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


def _cpuinfo() -> str:
    """What Linux says about the processor; "" elsewhere."""
    try:
        return Path("/proc/cpuinfo").read_text()
    except OSError:
        return ""


def versions() -> dict[str, str]:
    """Versions of Python and of what decides about speed."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            pass
    return found


def environment(device: Any = "cpu", dtype: Any = None) -> str:
    """Several lines for the top of a lesson: processor or GPU, threads, load, versions, dtype."""
    about = host(device)
    lines = [
        f"device        {device} ({about['device']})",
        f"CPU           {about['cpu']}, {about['cores']} cores, {about['threads']} threads used by torch",
        f"load          {'unknown' if about['load'] is None else about['load']}",
        *(f"{package:<13} {version}" for package, version in versions().items()),
    ]
    if dtype is not None:
        lines.append(f"dtype         {str(dtype).removeprefix('torch.')}")
    if warning := load_warning(about["load"]):
        lines.append(warning)
    return "\n".join(lines)
