"""Checkers: weights in four bits, batches with a cache, measuring bandwidth without mistakes, mixtures of experts."""

from lessons_lib.course.exercises import Attempt, exercise, expect
from lessons_lib.measure import CONFIGS, DATA_SHEETS, ModelConfig

A100, H100 = DATA_SHEETS["A100-80GB"], DATA_SHEETS["H100-SXM"]
MOST = 4096  # largest batch that exercise 00.2 tries


@exercise("00.1")
def four_bits(attempt: Attempt) -> None:
    """(tokens/s at best, tokens per pass at the ridge) with 5 bits per weight: 4, and 32 more per 32 weights."""
    expect(attempt, 1_000, 4_000, 10_000, equals=(16.0, 0.125))
    for sheet in (A100, H100):
        weights = CONFIGS["llama-2-7b"].weights
        limit, ridge = sheet.bandwidth / (0.625 * weights), 0.625 * sheet.bf16_flops / (2 * sheet.bandwidth)
        expect(attempt, weights, sheet.bf16_flops, sheet.bandwidth, equals=(limit, ridge))


@exercise("00.2")
def first_compute_bound(attempt: Attempt) -> None:
    """The smallest batch whose decode step is compute-bound with its cache, or None."""
    for name in ("llama-2-7b", "llama-3-8b", "smollm2-135m"):
        for cached in (0, 64, 512, 4096):
            config, flops, bandwidth = CONFIGS[name], H100.bf16_flops, H100.bandwidth
            expect(attempt, config, cached, flops, bandwidth, equals=_first(config, cached, flops / bandwidth))
    smol = CONFIGS["smollm2-135m"]
    expect(attempt, smol, 256, 440e9, 29e9, equals=_first(smol, 256, 440 / 29))


def _first(config: ModelConfig, cached: int, ridge: float) -> int | None:
    pairs = 4 * config.num_heads * config.head_dim * config.num_layers * cached
    keys = 2 * 2 * config.num_kv_heads * config.head_dim * config.num_layers * cached
    intensity = ((b, b * (2 * config.weights + pairs) / (2 * config.weights + b * keys)) for b in range(1, MOST + 1))
    return next((b for b, value in intensity if value >= ridge), None)


@exercise("00.3")
def bandwidth(attempt: Attempt) -> None:
    """The memory's bandwidth of machines that can only be read and timed."""
    for machine in (
        Simulated("a laptop", bandwidth=30e9, cache=2**25, cached=90e9),
        Simulated("a server with a large cache", bandwidth=200e9, cache=2**28, cached=900e9),
        Simulated("a GPU", bandwidth=3.35e12, cache=50 * 2**20, cached=7e12, call=20e-6),
    ):
        expect(attempt, machine, equals=machine.bandwidth, tolerance=0.05)


class Simulated:
    """A machine as a function: nbytes -> seconds that reading a buffer of this size takes.

    Buffers up to `cache` bytes are read at `cached` bytes/s. A call costs `call` seconds more, the first read of a size
    takes three times as long, and of every three calls another program slows one down.
    """

    memory = 2**33

    def __init__(self, name: str, bandwidth: float, cache: int, cached: float, call: float = 5e-6):
        self.name, self.bandwidth, self.cache, self.cached, self.call = name, bandwidth, cache, cached, call
        self.sizes, self.calls = set(), 0

    def __call__(self, nbytes: int) -> float:
        if not 0 < nbytes <= self.memory:
            raise ValueError(f"this machine reads from 1 to {self.memory:,} bytes at once, not {nbytes:,}")
        self.calls += 1
        slower = 1 if nbytes in self.sizes else 3
        slower *= 1.5 if self.calls % 3 == 2 else 1
        self.sizes.add(nbytes)
        return self.call + slower * nbytes / (self.cached if nbytes <= self.cache else self.bandwidth)

    def __repr__(self) -> str:
        return self.name


@exercise("00.4")
def experts_read(attempt: Attempt) -> None:
    """Expected number of distinct experts: E(1 - (1 - k/E)^w)."""
    expect(attempt, 8, 2, 1, equals=2)
    expect(attempt, 8, 2, 2, equals=3.5)
    expect(attempt, 64, 8, 16, equals=64 * (1 - (7 / 8) ** 16))
    expect(attempt, 4, 4, 3, equals=4)
    expect(attempt, 128, 8, 1000, equals=128)
