"""What this machine can do: memory bandwidth, FLOP/s, and what wider forwards cost (lesson 00).

Predictions take the bandwidth that a one-row matrix product reaches in the same dtype, not that of a copy,
and not a data sheet.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from lessons_lib.measure import clock, kernels, machine, tables
from lessons_lib.paths import cache_dir
from lessons_lib.progress import say


@dataclass(frozen=True)
class Hardware:
    """Measured rates of one device: bytes/s and FLOP/s, by dtype name where products differ. load: at that time.

    widths: {dtype name: {w: v(w)}} of one large matrix (`kernels.widths`); a model's own curve, attention and all:
    `decoding.probing.width_times`. KeyError where a dtype is asked for that was not measured.
    """

    device: str
    name: str
    threads: int
    copy_bandwidth: float  # read + written
    read_bandwidth: float
    matvec_bandwidth: dict[str, float]
    matmul_flops: dict[str, float]
    load: float | None = None
    torch: str = ""
    widths: dict[str, dict[int, float]] = field(default_factory=dict)

    def ridge(self, dtype: str) -> float:
        """FLOPs per byte from which a product in this dtype is compute-bound here."""
        return self.matmul_flops[dtype] / self.matvec_bandwidth[dtype]

    def __str__(self) -> str:
        rows = [
            ["copy (read + write)", f"{self.copy_bandwidth / 1e9:.1f} GB/s", "", ""],
            ["read", f"{self.read_bandwidth / 1e9:.1f} GB/s", "", ""],
        ]
        for dtype, bandwidth in self.matvec_bandwidth.items():
            rates = [f"{bandwidth / 1e9:.1f} GB/s", f"{self.matmul_flops[dtype] / 1e9:,.0f} GFLOP/s"]
            rows.append([f"products in {dtype}", *rates, f"{self.ridge(dtype):.1f}"])
        head = f"{self.device}: {self.name}, {self.threads} threads, load {self.load}"
        lines = [head, tables.text(("", "bandwidth", "arithmetic", "ridge, FLOP/byte"), rows)]
        for dtype, curve in self.widths.items():
            shown = ", ".join(f"v({w}) {v:.2f}" for w, v in curve.items())
            lines.append(f"w rows through one matrix over one row, {dtype}: {shown}")
        return "\n".join(lines)


def probe(device: Any = "cpu", dtypes: Sequence[str] | None = None, refresh: bool = False) -> Hardware:
    """Measure this device once, which takes up to 10 s, and read the stored result afterwards.

    dtypes: names such as "bf16"; None: default_dtypes. refresh: measure again. Kept per machine, device, number of
    threads and torch version under the cache folder, if that can be written. ValueError for an unknown dtype.
    """
    wanted = list(dtypes or default_dtypes(device))
    if unknown := [name for name in wanted if name not in kernels.DTYPES]:
        raise ValueError(f"Cannot measure {', '.join(unknown)}; choose from {', '.join(kernels.DTYPES)}.")
    path = _store(device, torch.__version__, torch.get_num_threads())
    stored = _read(path)
    if stored and not refresh:
        if set(wanted) <= set(stored.widths):
            return stored
        wanted += [name for name in stored.matvec_bandwidth if name not in wanted]
    measured = measure(device, wanted)
    _keep(path, measured)
    return measured


def default_dtypes(device: Any = "cpu") -> tuple[str, ...]:
    """fp32 and bf16; on GPUs fp16 too (on CPUs it is rarely fast), and bf16 only where the GPU has it."""
    if str(device) == "cpu":
        return "fp32", "bf16"
    return ("fp32", "bf16", "fp16") if machine.gpu_bf16(device) else ("fp32", "fp16")


def measure(device: Any, dtypes: Sequence[str]) -> Hardware:
    """Measure now and store nothing. dtypes: names of kernels.DTYPES, else KeyError."""
    load = machine.load()
    say(f"Measuring {machine.device_name(device)} (once; kept for later) ...")
    copy, read = kernels.streams(device)
    return Hardware(
        device=str(device),
        name=machine.device_name(device),
        threads=torch.get_num_threads(),
        copy_bandwidth=copy,
        read_bandwidth=read,
        matvec_bandwidth={name: kernels.matvec(device, name) for name in dtypes},
        matmul_flops={name: kernels.matmul(device, name) for name in dtypes},
        widths={name: kernels.widths(device, name) for name in dtypes},
        load=load,
        torch=torch.__version__,
    )


def width_costs(curve: dict[int, clock.Samples]) -> dict[int, float]:
    """{w: Samples in seconds} -> {w: v(w)}, without unit: median time over that of the narrowest width, of one row.

    ValueError for no widths.
    """
    one = curve[min(curve)].median
    return {w: samples.median / one for w, samples in curve.items()}


def _store(device: Any, version: str, threads: int) -> Path | None:
    name = f"{platform.node()} {machine.device_name(device)} {device} {threads} {version} {os.cpu_count()}"
    try:
        return cache_dir() / "hardware" / f"{hashlib.sha256(name.encode()).hexdigest()[:16]}.json"
    except OSError:
        return None


def _read(path: Path | None) -> Hardware | None:
    """The stored result; None if there is none, or one that this version cannot read."""
    try:
        stored = json.loads(path.read_text(encoding="utf-8")) if path else None
        if not stored:
            return None
        curves = {name: {int(w): v for w, v in curve.items()} for name, curve in stored.pop("widths", {}).items()}
        return Hardware(**stored, widths=curves)  # JSON's keys are texts
    except (OSError, ValueError, TypeError, AttributeError):
        return None


def _keep(path: Path | None, measured: Hardware) -> None:
    """Store for later, or go on without: a cache that cannot be written costs only the next probe."""
    if path is None:
        return
    partial = path.with_suffix(f".{os.getpid()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(json.dumps(asdict(measured), indent=1), encoding="utf-8")
        os.replace(partial, path)
    except OSError:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
