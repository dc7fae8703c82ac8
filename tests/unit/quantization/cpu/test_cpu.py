"""Memory that rounding freed goes back to the system."""

import platform
from pathlib import Path

import pytest
import torch

from lessons_lib.quantization import cpu


def resident() -> int:
    """Bytes of this process that lie in memory."""
    return int(Path("/proc/self/status").read_text().split("VmRSS:")[1].split()[0]) * 1024


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc keeps freed pieces, and can give them back")
def test_freed_pieces_below_one_that_lives_go_back_to_the_system():
    pieces = [torch.ones(1 << 14) for _ in range(1600)]
    living = torch.ones(1 << 14)
    del pieces
    kept = resident()
    cpu.trim_heap()
    assert resident() < kept - 50e6 and living.sum() == 1 << 14
