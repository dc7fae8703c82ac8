"""What vendors print about GPUs, for lessons to compare with; predictions use measured rates instead."""

from dataclasses import dataclass


@dataclass(frozen=True)
class DataSheet:
    """Peaks of one GPU: bytes/s, dense (not sparse) bf16 FLOP/s, bytes of memory."""

    name: str
    bandwidth: float
    bf16_flops: float
    memory: float
    source: str

    @property
    def ridge(self) -> float:
        """FLOPs per byte at which bf16 work stops being memory-bound."""
        return self.bf16_flops / self.bandwidth


PUBLISHED: dict[str, DataSheet] = {
    "A100-40GB": DataSheet("A100-40GB", 1.555e12, 312e12, 40e9, "NVIDIA A100 data sheet"),
    "A100-80GB": DataSheet("A100-80GB", 2.04e12, 312e12, 80e9, "NVIDIA A100 data sheet"),
    "H100-SXM": DataSheet("H100-SXM", 3.35e12, 989e12, 80e9, "NVIDIA H100 data sheet"),
    "H200": DataSheet("H200", 4.8e12, 989e12, 141e9, "NVIDIA H200 data sheet"),
}
