"""What a GPU makes of decoding steps, of the ladder and of the engine: `python -m bench.on_gpu`, where there is one.

A step's time is that of one row behind CACHED tokens: eager, compiled, and the compiled one recorded as a CUDA graph
and replayed, with what reading its bytes alone would take. The ladder is that of gpu_ladder.py. The engine's three
claims against other ways of serving are those of bench/serving.py. Beside the other results all of it is in gpu.json,
which is written after every part, since a GPU that is lent may go at any time; lessons 10 and 11 show it.

    python -m bench.on_gpu [steps] [ladder] [serving]
"""

import json
import sys
from collections.abc import Callable, Iterator, Sequence

import torch

from bench import serving
from bench.common import CLAIMS, Run
from bench.gpu_ladder import ladder
from bench.run import RESULTS
from lessons_lib.compiler import capture
from lessons_lib.decoding.draft_tree import plain_block
from lessons_lib.decoding.probing import repeatable_step
from lessons_lib.decoding.targets import CompiledTarget, DecoderTarget
from lessons_lib.measure import hardware, machine
from lessons_lib.measure.clock import timed
from lessons_lib.models.hub import dtype_name
from lessons_lib.models.quantized import bytes_read
from lessons_lib.progress import bar, say

FORMATS = (None, "int8-weight-only", "int4", "int8")
CACHED, REPEATS = 64, 31
WAYS = ("serving/continuous-vs-static", "serving/vs-generate-batch", "serving/vs-sequential")


def main(parts: Sequence[str] = ()) -> int:
    """Measure and store the parts named, all if none is -> exit status: 1 where there is no GPU of CUDA, 2 for a part
    that there is not."""
    if unknown := [part for part in parts if part not in PARTS]:
        say(f"{', '.join(unknown)}: no part of bench/on_gpu.py; there are {', '.join(PARTS)}")
        return 2
    if not torch.cuda.is_available():
        say("bench/on_gpu.py measures a GPU of CUDA, and there is none here")
        return 1
    lm = serving.model()
    about = {"host": machine.host(lm.device), "versions": machine.versions()}
    for part in parts or PARTS:
        found = {}
        for name, value in PARTS[part](lm):
            found[name] = value
            store(**{part: found, f"{part} on": about})
    return 0


def store(**facts) -> None:
    """Put these beside what gpu.json holds, in one move."""
    path = RESULTS / "gpu.json"
    found = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    part = path.with_suffix(".part")
    part.write_text(json.dumps(found | facts, indent=1) + "\n", encoding="utf-8")
    part.replace(path)


def steps(lm) -> Iterator[tuple[str, dict[str, float]]]:
    """Milliseconds of a step in every format."""
    rate = hardware.probe(lm.device, [dtype_name(lm.dtype)]).read_bandwidth
    for weights in bar(FORMATS, desc="steps"):
        yield weights or dtype_name(lm.dtype), times(lm.target(weights=weights), rate)


def engine(lm) -> Iterator[tuple[str, list]]:
    """The claims of serving: ratio, interval, note."""
    for name in bar(WAYS, desc="serving"):
        found = CLAIMS[name].measure(Run(quick=False))
        yield name, [found.ratio.value, found.ratio.low, found.ratio.high, found.note]


PARTS = {"steps": steps, "ladder": ladder, "serving": engine}


def times(of: DecoderTarget, rate: float) -> dict[str, float]:
    """Milliseconds of a one-row step: eager, compiled, graph (where the device records one), and limit, at `rate`
    bytes/s."""
    prompt = [50] * CACHED  # any tokens: what is timed does not depend on them
    compiled = CompiledTarget(of.decoder, of.tokenizer, of.eos)
    calls = {"eager": repeatable_step(of, prompt), "compiled": repeatable_step(compiled, prompt)}
    calls["compiled"]()
    if of.device.type == "cuda":
        calls["graph"] = capture(*step_alone(compiled, prompt))
    found = {name: 1e3 * timed(call, of.device, repeats=REPEATS, warmup=3).median for name, call in calls.items()}
    return found | {"limit": 1e3 * bytes_read(of.decoder) / rate}


def step_alone(of: CompiledTarget, prompt: list[int]) -> tuple[Callable, tuple]:
    """The compiled function of one row, and tensors for it behind the prompt."""
    cache = of.new_cache(len(prompt) + 1)
    of.run([plain_block(prompt, cache)])
    new = lambda number: torch.tensor([number], device=of.device)  # noqa: E731
    args = new(prompt[-1]), new(len(prompt)), cache.slots(1), cache.mask(None, 1, 1), cache.keys, cache.values
    return of._step(1), args


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
