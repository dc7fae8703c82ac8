"""A stand-in for CUDA graphs: on a CPU a "replay" runs the step again and fills the tensors of its first call."""

from contextlib import contextmanager
from unittest import mock

import torch

from lessons_lib import compiler


@torch.no_grad()
def capture(step, args, pool=None):
    """As `compiler.capture`: what the step works on and fills is fixed."""
    out = step(*args)

    @torch.no_grad()
    def replay():
        for old, new in zip(out, step(*args), strict=True):
            old.copy_(new)
        return out

    return replay


class EagerStep:
    """A CompiledStep that runs as it is."""

    problem, seconds = None, 0.0

    def __init__(self, step, name="", *args, **settings):
        self.step = torch.no_grad()(step)

    def __call__(self, *args):
        return self.step(*args)


@contextmanager
def graphs_on_cpu(problem: str | None = "not compiled in this test", compiles: bool = True):
    """Targets with cuda_graph=True capture by the stand-in -> the arguments of every capture.

    problem: why nothing compiles. compiles: False leaves steps as they are, which still count as compiled.
    """
    captured = []

    def counted(step, args, pool=None):
        captured.append(args)
        return capture(step, args, pool)

    targets = "lessons_lib.decoding.targets.compiled"
    with (
        mock.patch.object(compiler, "capture", counted),
        mock.patch(f"{targets}.compiler_problem", lambda device: problem),
        mock.patch(f"{targets}.CompiledStep", compiler.CompiledStep if compiles else EagerStep),
    ):
        yield captured
