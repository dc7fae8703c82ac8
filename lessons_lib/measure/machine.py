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
BUSY = 0.2  # share of the cores that other programs may use before they disturb measurements


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


def used_by_others(seconds: float = 0.5) -> float | None:
    """Cores that other programs use, measured over this time.

    None without /proc/stat: the load average counts our own threads, too.
    """
    start, before = time.perf_counter(), _cpu_seconds_of_others()
    if before is None:
        return None
    time.sleep(seconds)
    return max(0.0, (_cpu_seconds_of_others() - before) / (time.perf_counter() - start))


def _cpu_seconds_of_others() -> float | None:
    """Seconds for which the cores have worked since they started, without those for this process."""
    try:
        user, nice, system, _idle, _iowait, *interrupts = map(int, Path("/proc/stat").read_text().split()[1:8])
    except OSError:
        return None
    return (user + nice + system + sum(interrupts)) / os.sysconf("SC_CLK_TCK") - time.process_time()


def busy_warning() -> str:
    """One sentence where other programs use so much of the machine that times mean little; else ""."""
    cores, used = os.cpu_count() or 1, used_by_others()
    if used is None or used <= BUSY * cores:
        return ""
    return f"Other programs use {used:.1f} of this machine's {cores} cores: close them, or expect slow and noisy times."


def wait_until_quiet(patience: float = 180.0, pause: float = 5.0) -> str:
    """Wait, at most `patience` seconds, for other programs to end; "" once they have, else the `busy_warning`."""
    deadline = time.monotonic() + patience
    while (warning := busy_warning()) and time.monotonic() + pause <= deadline:
        time.sleep(pause)
    return warning


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
    if warning := busy_warning():
        lines.append(warning)
    return "\n".join(lines)
