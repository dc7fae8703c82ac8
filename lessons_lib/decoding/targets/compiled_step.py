"""One forward as a compiled function of tensors (lesson 03): announced and timed as it compiles, or uncompiled."""

from collections.abc import Callable
from time import perf_counter

import torch
from torch._dynamo.exc import ShortenTraceback

from lessons_lib.decoding.targets.compiler import keep_compiled_code, settings
from lessons_lib.progress import say


class CompiledStep:
    """step(*tensors), compiled at the first call, and again after a `torch.compiler.reset()`.

    name: what is said to be compiling. frozen, tuned, short: see `compiler.settings`. seconds: what the first call
    took, None before it. problem: why the step is not compiled and runs as it is, None if it is.
    """

    def __init__(self, step: Callable, name: str, frozen: bool, tuned: bool, short: bool = False):
        step.__code__ = step.__code__.replace()  # its own copy: graphs are kept with the code, a handful at most
        self.step, self.name, self.chosen = step, name, dict(frozen=frozen, tuned=tuned, short=short)
        self.seconds: float | None = None
        self.problem: str | None = None
        self._compiled = torch.compile(step, dynamic=False, fullgraph=True)

    @torch.no_grad()  # as the step was compiled: a graph for another mode would be another graph
    def __call__(self, *args):
        if self.problem:
            return self.step(*args)
        if self.seconds is None:
            return self._first(*args)
        try:  # no checks before every call (up to 1 ms): what they would find never changes here
            with torch.compiler.set_stance("default", skip_guard_eval_unsafe=True):
                return self._compiled(*args)
        except RuntimeError as error:
            if "Recompilation triggered" not in str(error):
                raise
            return self._first(*args)  # torch.compiler.reset() has thrown the graph away; nothing has run yet

    def _first(self, *args):
        keep_compiled_code()
        say(f"compiling the {self.name} ...")
        since = perf_counter()
        try:
            with settings(**self.chosen):
                out = self._compiled(*args)
        except ShortenTraceback as error:  # of the compiler, whatever it lacks
            self.problem = f"torch.compile failed ({reason(error)})"
            return self.step(*args)
        self.seconds = perf_counter() - since
        say(f"compiled in {self.seconds:.0f} s")
        return out


def reason(error: Exception) -> str:
    """The first line of what a compiler's error says, without its end mark."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".: ")


def say_uncompiled(problem: str) -> None:
    """Tell whoever waits why nothing is compiled; decoding goes on."""
    say(f"{problem}; decoding runs uncompiled")
