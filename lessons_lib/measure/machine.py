"""This machine (lesson 00): its hardware and its measured rates.

Predictions use the bandwidth of a matrix-vector product in the same dtype, not that of a copy or a data sheet. The
probe keeps the best of several runs, because other programs can only make a run slower.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from lessons_lib.measure import clock, tables
from lessons_lib.measure.config import ELEMENT_BYTES, ModelConfig
from lessons_lib.measure.cost import flops
from lessons_lib.paths import cache_dir, write_whole
from lessons_lib.progress import say

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "fp64": torch.float64}
MOST_BYTES = 512 * 2**20  # limit of the probe's buffers on a CPU
BUDGET = 0.5  # seconds that one square matmul may take
WIDEST = 16  # rows of the widest matmul
PACKAGES = ("torch", "transformers", "numpy")
BUSY = 0.2  # share of the cores that other programs may use before they disturb measurements


def cpu_name() -> str:
    """The processor's name as the system reports it, such as 'AMD EPYC'."""
    named = (line.split(":", 1)[1].strip() for line in _cpuinfo().splitlines() if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine()


def device_name(device: Any = "cpu") -> str:
    """Name of the CPU or the GPU that `device` denotes."""
    kind = str(device).split(":")[0]
    if kind in ("cuda", "xpu"):
        return getattr(torch, kind).get_device_name(device)
    return cpu_name() if kind == "cpu" else f"{kind} on {cpu_name()}"


def load() -> float | None:
    """Load average of the last minute; None where the system does not report it."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None


def used_by_others() -> float | None:
    """Cores that other programs use, measured over half a second; None without /proc/stat.

    The load average would not do: it counts our own threads too.
    """
    start, before = time.perf_counter(), _cpu_seconds_of_others()
    if before is None:
        return None
    time.sleep(0.5)
    return max(0.0, (_cpu_seconds_of_others() - before) / (time.perf_counter() - start))


def _cpu_seconds_of_others() -> float | None:
    """Busy CPU seconds of all cores since boot, minus this process's own."""
    try:
        user, nice, system, _idle, _iowait, *interrupts = map(int, Path("/proc/stat").read_text().split()[1:8])
    except OSError:
        return None
    return (user + nice + system + sum(interrupts)) / os.sysconf("SC_CLK_TCK") - time.process_time()


def busy_warning() -> str:
    """A one-sentence warning if other programs use more than a share BUSY of the cores; else ""."""
    cores, used = os.cpu_count() or 1, used_by_others()
    if used is None or used <= BUSY * cores:
        return ""
    return f"Other programs use {used:.1f} of this machine's {cores} cores: close them, or expect slow and noisy times."


def wait_until_quiet(patience: float = 180.0, pause: float = 5.0) -> str:
    """Wait up to `patience` seconds for other programs to end. Returns "" on success, else the `busy_warning`."""
    deadline = time.monotonic() + patience
    while (warning := busy_warning()) and time.monotonic() + pause <= deadline:
        time.sleep(pause)
    return warning


def gpu_bf16(device: Any) -> bool:
    """Whether a GPU has native bf16 matmuls. Assumed absent on Apple's GPUs, which have them only from the M2 on."""
    if str(device).startswith("cuda"):
        with torch.cuda.device(device):
            return torch.cuda.is_bf16_supported(including_emulation=False)
    return not str(device).startswith("mps")


def cache_bytes(device: Any = "cpu") -> int:
    """Bytes of the last-level cache; 32 MiB where it is unknown."""
    if str(device).startswith("cuda"):
        return torch.cuda.get_device_properties(device).L2_cache_size
    found = Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")
    sizes = [int(text[:-1]) * 2**10 for path in found if (text := path.read_text().strip()).endswith("K")]
    return max(sizes, default=32 * 2**20)


def host(device: Any = "cpu") -> dict[str, Any]:
    """Description of the machine to store with measurements; without names of persons or networks."""
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
    """Widest vector instructions torch uses here, native bf16 and matrix units: "AVX512 bf16 AMX", "AVX2"."""
    found = [torch.backends.cpu.get_cpu_capability()]
    found += ["bf16"] if cpu_bf16() else []
    found += ["AMX"] if torch.cpu._is_amx_tile_supported() else []
    return " ".join(found)


def cpu_bf16() -> bool:
    """Whether the CPU has native bf16 matmuls; elsewhere they are emulated and gain nothing over fp32.

    torch.ops.mkldnn._is_mkldnn_bf16_supported cannot be used: it is True for any AVX512.
    """
    if platform.machine().lower() in ("aarch64", "arm64"):
        return " bf16" in _cpuinfo()  # Apple's CPUs have no flag to read here, so fp32
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


def _cpuinfo() -> str:
    """Contents of /proc/cpuinfo; "" on other systems than Linux."""
    try:
        return Path("/proc/cpuinfo").read_text()
    except OSError:
        return ""


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that affect speed."""
    return {"python": platform.python_version()} | {package: metadata.version(package) for package in PACKAGES}


def environment(device: Any, dtype: Any) -> str:
    """Several lines for the top of a lesson: processor or GPU, threads, load, versions, dtype."""
    about = host(device)
    lines = [
        f"device        {device} ({about['device']})",
        f"CPU           {about['cpu']}, {about['cores']} cores, {about['threads']} threads used by torch",
        f"load          {'unknown' if about['load'] is None else about['load']}",
        *(f"{package:<13} {version}" for package, version in versions().items()),
        f"dtype         {str(dtype).removeprefix('torch.')}",
    ]
    if warning := busy_warning():
        lines.append(warning)
    return "\n".join(lines)


# --- Measured rates, stored for later


@dataclass(frozen=True)
class Hardware:
    """Measured rates of one device: bytes/s and FLOP/s, by dtype name for matmuls. load: the load average at the time.

    widths: {dtype name: {w: v(w)}} of one large matrix (`widths`). For a whole model's width curve, attention included,
    see `decoding.probing.width_times`. Dtypes that were not measured are missing from the dictionaries.
    """

    device: str
    name: str
    threads: int
    copy_bandwidth: float  # read + written
    read_bandwidth: float
    matvec_bandwidth: dict[str, float]
    matmul_flops: dict[str, float]
    load: float | None = None
    widths: dict[str, dict[int, float]] = field(default_factory=dict)

    def ridge(self, dtype: str) -> float:
        """Arithmetic intensity (FLOPs per byte) above which a matmul in this dtype is compute-bound here."""
        return self.matmul_flops[dtype] / self.matvec_bandwidth[dtype]

    def __str__(self) -> str:
        rows = [
            ["copy (read + write)", f"{self.copy_bandwidth / 1e9:.1f} GB/s", "", ""],
            ["read", f"{self.read_bandwidth / 1e9:.1f} GB/s", "", ""],
        ]
        for dtype, bandwidth in self.matvec_bandwidth.items():
            rates = [f"{bandwidth / 1e9:.1f} GB/s", f"{self.matmul_flops[dtype] / 1e9:,.0f} GFLOP/s"]
            rows.append([f"matmuls in {dtype}", *rates, f"{self.ridge(dtype):.1f}"])
        head = f"{self.device}: {self.name}, {self.threads} threads, load {self.load}"
        lines = [head, tables.text(("", "bandwidth", "arithmetic", "ridge: computing limits above, FLOP/byte"), rows)]
        for dtype, curve in self.widths.items():
            shown = ", ".join(f"v({w}) {v:.2f}" for w, v in curve.items())
            lines.append(f"w rows through one matrix over one row, {dtype}: {shown}")
        return "\n".join(lines)


def probe(device: Any = "cpu", dtypes: Sequence[str] | None = None, refresh: bool = False) -> Hardware:
    """Measure this device once, which takes up to 10 s, and read the stored result afterwards.

    dtypes: names such as "bf16"; None: default_dtypes. refresh: measure again. Results are stored in the cache folder,
    if it is writable, per machine, device, number of threads and torch version.
    """
    wanted = list(dtypes or default_dtypes(device))
    if unknown := set(wanted) - set(DTYPES):
        raise ValueError(f"Cannot measure {', '.join(sorted(unknown))}; choose from {', '.join(DTYPES)}.")
    threads, cores = torch.get_num_threads(), os.cpu_count()
    name = f"{platform.node()} {device_name(device)} {device} {threads} {torch.__version__} {cores}"
    path = cache_dir() / "hardware" / f"{hashlib.sha256(name.encode()).hexdigest()[:16]}.json"
    stored = _read(path)
    if stored and not refresh:
        if set(wanted) <= set(stored.widths):
            return stored
        wanted += [name for name in stored.matvec_bandwidth if name not in wanted]
    measured = measure(device, wanted)
    _keep(path, measured)
    return measured


def default_dtypes(device: Any = "cpu") -> tuple[str, ...]:
    """fp32 and bf16 on a CPU; on a GPU also fp16 (rarely fast on CPUs), and bf16 only if native."""
    if str(device) == "cpu":
        return "fp32", "bf16"
    return ("fp32", "bf16", "fp16") if gpu_bf16(device) else ("fp32", "fp16")


def measure(device: Any, dtypes: Sequence[str]) -> Hardware:
    """Measure this device now, without storing the result. dtypes: names from DTYPES."""
    busy = load()
    say(f"Measuring {device_name(device)} ...")
    copy, read = streams(device)
    return Hardware(
        device=str(device),
        name=device_name(device),
        threads=torch.get_num_threads(),
        copy_bandwidth=copy,
        read_bandwidth=read,
        matvec_bandwidth={name: matvec(device, name) for name in dtypes},
        matmul_flops={name: matmul(device, name) for name in dtypes},
        widths={name: widths(device, name) for name in dtypes},
        load=busy,
    )


def _read(path: Path) -> Hardware | None:
    """The stored result; None if there is none or this version cannot read it."""
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        curves = {name: {int(w): v for w, v in curve.items()} for name, curve in stored.pop("widths", {}).items()}
        return Hardware(**stored, widths=curves)  # JSON keys are strings
    except (OSError, ValueError, TypeError, AttributeError):
        return None


def _keep(path: Path, measured: Hardware) -> None:
    """Store the result. A cache folder that cannot be written is ignored: the next probe measures again."""
    with contextlib.suppress(OSError):
        write_whole(path, json.dumps(asdict(measured), indent=1))


# --- The kernels that the probe times


def best(fn: Callable[[], Any], device: Any, repeats: int = 5) -> float:
    """Seconds of the fastest of `repeats` runs.

    LESSONS_LIB_QUICK does not shorten this, because the probe's result is stored.
    """
    fn(), fn()
    return min(clock.timed(fn, device, repeats=1, warmup=0).min for _ in range(repeats))


def buffer_bytes(device: Any) -> int:
    """Size of the probe's buffer: at least 8 times the last-level cache; on a CPU at most MOST_BYTES."""
    floor = MOST_BYTES // 2 if str(device) == "cpu" else 2**30
    size = max(floor, 8 * cache_bytes(device))
    return min(size, MOST_BYTES) if str(device) == "cpu" else size


def streams(device: Any) -> tuple[float, float]:
    """(copy, read) bandwidth in bytes/s. Copy counts both the bytes read and the bytes written."""
    buffer = torch.ones(buffer_bytes(device) // 4, dtype=torch.float32, device=device)
    source, target = buffer.chunk(2)
    copy = best(lambda: target.copy_(source), device)  # half of the buffer is read, half is written
    read = best(buffer.sum, device)
    return buffer.nbytes / copy, buffer.nbytes / read


def matvec(device: Any, dtype: str) -> float:
    """Bytes/s at which torch's eager matrix-vector product x Wᵀ reads W."""
    width, kind = 4096, DTYPES[dtype]
    rows = buffer_bytes(device) // (width * kind.itemsize)
    weight = torch.full((rows, width), 0.01, dtype=kind, device=device)
    x = torch.ones(1, width, dtype=kind, device=device)
    with torch.inference_mode():
        seconds = best(lambda: torch.nn.functional.linear(x, weight), device)
    return weight.nbytes / seconds


def matmul(device: Any, dtype: str) -> float:
    """FLOP/s of the fastest square matmul. Sizes double until the next one would take over BUDGET seconds."""
    rate, side = 0.0, 256
    deadline = time.perf_counter() + 4 * BUDGET
    while side <= 16384:
        a = torch.rand(side, side, device=device).to(DTYPES[dtype])  # constants would draw less power: higher clock
        seconds = best(lambda a=a: a @ a, device, 3)
        rate = max(rate, 2 * side**3 / seconds)
        if 8 * seconds > BUDGET or time.perf_counter() + 5 * 8 * seconds > deadline:
            break
        side *= 2
    return rate


def widths(device: Any, dtype: str) -> dict[int, float]:
    """Width curve {w: v(w)} of one large matrix: time of w rows over that of one row, w doubling up to WIDEST.

    Stops where the next width would take over BUDGET seconds, for example in an emulated dtype.
    """
    side = 4096
    weight = torch.full((buffer_bytes(device) // (4 * side * DTYPES[dtype].itemsize), side), 0.01, device=device)
    weight, took, w = weight.to(DTYPES[dtype]), {}, 1
    with torch.inference_mode():
        while w <= WIDEST and 2 * took.get(w // 2, 0.0) <= BUDGET:
            x = torch.ones(w, side, dtype=weight.dtype, device=device)
            took[w] = best(lambda x=x: torch.nn.functional.linear(x, weight), device)
            w *= 2
    return {w: seconds / took[1] for w, seconds in took.items()}


def linears(shape: ModelConfig, dtype: str, device: Any, rows: int = 1, head_rows: int = 1) -> float:
    """Seconds of torch's eager matmuls of `rows` inputs with this model's own matrices, and `head_rows` with its head.

    Small matrices are read more slowly than the probe's large one. For a large model only as many layers as fit in 1
    GiB are allocated, and their time is scaled up.
    """
    made = {"dtype": DTYPES[dtype], "device": device}
    sizes = shape.layer_matrices
    layer = sum(height * width for height, width in sizes) * made["dtype"].itemsize
    layers = min(shape.num_layers, max(1, 2**30 // layer))
    weights = [torch.full(size, 0.01, **made) for size in sizes * layers]
    inputs = {width: torch.ones(rows, width, **made) for _, width in sizes}
    head = torch.full((shape.head_rows or shape.vocab_size, shape.hidden_size), 0.01, **made)
    last = torch.ones(head_rows, shape.hidden_size, **made)

    def read() -> None:
        for weight in weights:
            torch.nn.functional.linear(inputs[weight.shape[1]], weight)

    with torch.inference_mode():
        inside = best(read, device) * shape.num_layers / layers
        return inside + best(lambda: torch.nn.functional.linear(last, head), device)


def calibrate(config: ModelConfig, dtype: str, device: Any, tokens: int) -> tuple[float, float]:
    """B' and F', the rates of torch's eager matmuls with this model's own matrices, each timed twice.

    B': bytes/s of a pass over one token. F': FLOP/s of a pass over `tokens` tokens, with the head for the last one.
    """
    decode, prefill = (min(linears(config, dtype, device, rows) for _ in range(2)) for rows in (1, tokens))
    return config.weights * ELEMENT_BYTES[dtype] / decode, flops(config, tokens, 1, 0) / prefill
