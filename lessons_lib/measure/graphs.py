"""How often a function was compiled (lesson 03): graphs captured by torch.compile, and where they broke."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Graphs:
    """Graphs that were captured, and graph breaks: places where the compiler gave up and Python went on."""

    graphs: int
    breaks: int


def count_graphs(function: Callable[[], Any]) -> Graphs:
    """Run function in a compiler that has forgotten all earlier work. Steps compiled before compile again later.

    With torch.compile(..., backend="eager") counting takes no longer than capturing: no machine code is made. Errors of
    function come through.
    """
    import torch._dynamo
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    function()
    return Graphs(counters["stats"]["unique_graphs"], sum(counters["graph_break"].values()))
