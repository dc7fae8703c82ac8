"""One forward as a compiled function of tensors (lesson 03): announced and timed as it compiles, or uncompiled."""

from collections.abc import Callable
from time import perf_counter

import torch
from torch._dynamo import lookup_backend
from torch._dynamo.exc import BackendCompilerFailed, ShortenTraceback

from lessons_lib.compiler import keep_compiled_code, settings
from lessons_lib.progress import first_line, say


class CompiledStep:
    """step(*tensors), compiled at the first call, and again after a `torch.compiler.reset()`.

    name: what is said to be compiling. frozen, tuned, short, indices_checked: see `compiler.settings`. prepare: is
    given the tensors whenever they are about to be compiled for. seconds: what the first call took, None before it.
    problem: why the step is not compiled and runs as it is, None if it is. Errors are the step's.
    """

    def __init__(
        self,
        step: Callable,
        name: str,
        frozen: bool,
        tuned: bool,
        short: bool = False,
        indices_checked: bool = True,
        prepare: Callable = lambda *args: None,
    ):
        step.__code__ = step.__code__.replace()  # its own copy: graphs are kept with the code, a handful at most
        self.step, self.name = step, name
        self.chosen = dict(frozen=frozen, tuned=tuned, short=short, indices_checked=indices_checked)
        self.prepare = prepare
        self.seconds: float | None = None
        self.problem: str | None = None
        # checks before every call would take up to 1 ms, and find nothing: what they look for never changes here
        unchecked = {"guard_filter_fn": lambda guards: [False] * len(guards)}
        self._compiled = torch.compile(step, dynamic=False, fullgraph=True, backend=self._compile, options=unchecked)

    @torch.no_grad()  # as the step was compiled: a graph for another mode would be another graph
    def __call__(self, *args):
        if self.problem:
            return self.step(*args)
        if self.seconds is None:
            return self._first(*args)
        try:
            return self._compiled(*args)
        except BackendCompilerFailed:  # the graph was thrown away: see `_compile`; nothing has run yet
            return self._first(*args)

    def _first(self, *args):
        keep_compiled_code()
        self.seconds = None
        self.prepare(*args)
        say(f"compiling the {self.name} ...")
        since = perf_counter()
        try:
            with settings(**self.chosen):
                out = self._compiled(*args)
        except ShortenTraceback as error:  # of the compiler, whatever it lacks
            self.problem = f"torch.compile failed ({first_line(error)})"
            return self.step(*args)
        self.seconds = perf_counter() - since
        say(f"compiled in {self.seconds:.0f} s")
        return out

    def _compile(self, graph: torch.fx.GraphModule, inputs: list, **_) -> Callable:
        """The compiler. After a reset torch asks for it without our settings, which it needs before it comes here."""
        if self.seconds is not None:
            raise RuntimeError("torch.compiler.reset() has thrown the graph away")
        return lookup_backend("inductor")(graph, inputs)


def say_uncompiled(problem: str | None) -> str | None:
    """Tell whoever waits why nothing is compiled, if so; decoding goes on -> the problem, None if there is none."""
    if problem:
        say(f"{problem}; decoding runs uncompiled")
    return problem
