"""Calibration (lesson 10): the inputs of a decoder's matrices on sample texts, for GPTQ, AWQ and SmoothQuant.

The decoders here are `models.Decoder`s. A matrix is named (layer number, "qkv" | "out" | "gate_up" | "down"), the LM
head (number of layers, "head").
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lessons_lib.quantization.integers import working_dtype

MATRICES, HEAD = ("qkv", "out", "gate_up", "down"), "head"
SAMPLE = 256  # input rows kept for each matrix
Name = tuple[int, str]  # name of a matrix: (layer number, "qkv")
Windows = Sequence[Sequence[int]]  # calibration sequences of ids, each run on its own


def linears(decoder: nn.Module, head: bool = True) -> dict[Name, nn.Module]:
    """The linear layers of a decoder by name, in the order of a forward pass. head: include the LM head."""
    found = {(i, name): getattr(layer, name) for i, layer in enumerate(decoder.layers) for name in MATRICES}
    return found | ({(len(decoder.layers), HEAD): decoder.head} if head else {})


@contextmanager
def watching(modules: Mapping[Name, nn.Module], see: Callable[[Name, Tensor], None]) -> Iterator[None]:
    """Context manager that calls see(name, x) with the input x (T, K) of every call of these modules."""

    def hook_of(name: Name):
        def hook(_, args: tuple) -> None:
            see(name, args[0])

        return hook

    handles = [module.register_forward_pre_hook(hook_of(name)) for name, module in modules.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@torch.no_grad()
def watch(decoder: nn.Module, windows: Windows, see: Callable[[Name, Tensor], None]) -> None:
    """Run the windows through the decoder and call see(name, x) with the input x (T, K) of each matrix."""
    if not windows:
        raise ValueError("there is nothing to calibrate with; pass windows of ids, such as of text('calibration')")
    with watching(linears(decoder), see):
        for ids in windows:
            decoder.read(ids)


@dataclass(frozen=True)
class Inputs:
    """Calibration inputs of a matrix (N, K): max |x| of each column (K,), and a sample of rows (n, K)."""

    largest: Tensor
    sample: Tensor


def inputs_of(decoder: nn.Module, windows: Windows) -> dict[Name, Inputs]:
    """Collect the calibration inputs of each matrix along these windows, without the first token of each window.

    The first token's hidden states are many times larger than all others (Sun et al. 2024, arXiv 2402.17762). Where
    activations are rounded, each token has its own scale, so the first one must not decide about the others.
    """
    windows = [ids for ids in windows if len(ids) > 1]  # a window of one token has no others
    seen: dict[Name, list[tuple[Tensor, Tensor]]] = {}

    def see(name: Name, x: Tensor) -> None:
        x = x[1:].to(working_dtype(x.dtype))
        seen.setdefault(name, []).append((x.abs().amax(0), x[:: max(1, len(x) // SAMPLE)]))

    watch(decoder, windows, see)
    each = max(1, SAMPLE // len(windows))
    return {name: _together(parts, each) for name, parts in seen.items()}


def _together(parts: Sequence[tuple[Tensor, Tensor]], each: int) -> Inputs:
    largest, samples = zip(*parts, strict=True)
    rows = [x[torch.linspace(0, len(x) - 1, min(each, len(x))).long()] for x in samples]
    return Inputs(torch.stack(largest).amax(0), torch.cat(rows))
