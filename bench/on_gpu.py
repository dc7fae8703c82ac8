"""What a GPU makes of decoding steps and of the engine: `python bench/on_gpu.py`, where there is one.

A step's time is that of one row behind CACHED tokens: eager, compiled, and the compiled one recorded as a CUDA graph
and replayed, with what reading its bytes alone would take. The engine's three claims against other ways of serving are
those of bench/serving.py. Beside the other results it leaves gpu.json, whose steps lesson 10 shows.
"""

import json
import sys
from collections.abc import Callable

import serving
import torch
from registry import CLAIMS, Run
from run import RESULTS
from torch import Tensor

from lessons_lib.decoding.blocks import plain_block
from lessons_lib.decoding.probing import repeatable_step
from lessons_lib.decoding.targets import CompiledTarget, DecoderTarget
from lessons_lib.measure import hardware, machine
from lessons_lib.measure.clock import timed
from lessons_lib.models.device import dtype_name
from lessons_lib.models.quantized import bytes_read
from lessons_lib.progress import bar, say

FORMATS = (None, "int8-weight-only", "int8", "int4")
CACHED, REPEATS = 64, 31
WAYS = ("serving/continuous-vs-static", "serving/vs-generate-batch", "serving/vs-sequential")


def main() -> int:
    """Measure and store -> exit status, 1 where there is no GPU of CUDA."""
    if not torch.cuda.is_available():
        say("bench/on_gpu.py measures a GPU of CUDA, and there is none here")
        return 1
    lm = serving.model()
    rate = hardware.probe(lm.device, [dtype_name(lm.dtype)]).read_bandwidth
    steps = {name or dtype_name(lm.dtype): times(lm.target(weights=name), rate) for name in bar(FORMATS, desc="steps")}
    found = {name: CLAIMS[name].measure(Run(quick=False)) for name in bar(WAYS, desc="serving")}
    ratios = {name: [of.ratio.value, of.ratio.low, of.ratio.high, of.note] for name, of in found.items()}
    facts = {"host": machine.host(lm.device), "versions": machine.versions(), "read_bandwidth": rate}
    facts |= {"cached": CACHED, "steps": steps, "serving": ratios}
    (RESULTS / "gpu.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    return 0


def times(of: DecoderTarget, rate: float) -> dict[str, float]:
    """Milliseconds of a one-row step: eager, compiled, graph (where the device records one), and limit, at `rate`
    bytes/s."""
    prompt = [50] * CACHED  # any tokens: what is timed does not depend on them
    compiled = CompiledTarget(of.decoder, of.tokenizer, of.eos)
    calls = {"eager": repeatable_step(of, prompt), "compiled": repeatable_step(compiled, prompt)}
    calls["compiled"]()
    if of.device.type == "cuda":
        calls["graph"] = recorded(*step_alone(compiled, prompt))
    found = {name: 1e3 * timed(call, of.device, repeats=REPEATS, warmup=3).median for name, call in calls.items()}
    return found | {"limit": 1e3 * bytes_read(of.decoder) / rate}


def step_alone(of: CompiledTarget, prompt: list[int]) -> tuple[Callable, tuple]:
    """The compiled function of one row, and tensors for it behind the prompt."""
    cache = of.new_cache(len(prompt) + 1)
    of.run([plain_block(prompt, cache)])
    new = lambda number: torch.tensor([number], device=of.device)  # noqa: E731
    args = new(prompt[-1]), new(len(prompt)), cache.slots(1), cache.mask(None, 1, 1), cache.keys, cache.values
    return of._step(1), args


@torch.no_grad()
def recorded(step: Callable[..., tuple[Tensor, ...]], args: tuple) -> Callable[[], None]:
    """step(*args), once warm, as a CUDA graph -> its replay, which launches all kernels at once."""
    beside = torch.cuda.Stream()
    beside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(beside):
        for _ in range(3):
            step(*args)
    torch.cuda.current_stream().wait_stream(beside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step.kept = step(*args)  # its results must outlive the recording
    return graph.replay


if __name__ == "__main__":
    sys.exit(main())
