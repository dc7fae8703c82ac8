"""GPU measurements in eight minutes: `python -m bench.on_gpu [PART ...] [--results FILE]`.

part        what it measures                                                                                   limit
----------  ------------------------------------------------------------------------------------------------  ------
steps       ms of a decoding step of smollm2-135m's sizes in each format: eager, compiled, as CUDA graphs        90 s
ladder      tokens/s of 1B and of Llama-2-7B's sizes in bf16, W8A16 and W4A16, and the share of bandwidth       120 s
attention   ms and MB of causal attention against length: naive until memory ends, SDPA's backends               30 s
serving     the engine's claims against other ways of serving (bench/serving.py)                                 90 s
lessons     every lesson with short parameters: seconds, and where it failed                                     90 s
commands    `lessons generate`, `probe` and `compare` with the default model: seconds, and what failed           60 s

Each part runs in a process of its own and is stopped at its limit. Every number is stored at once, with the machine it
was measured on, in results/gpu.json, and is not measured again on the same machine: an interrupted run continues where
it stopped. Numbers of another machine are kept: store yours elsewhere with `--results FILE`. Weights are random where
only their sizes matter. With `--device cpu --tiny` all parts run in miniature, to test the script without a GPU; their
numbers go to build/bench/gpu-tiny.json.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from transformers import LlamaConfig

from bench import serving
from bench.common import CLAIMS, Run
from bench.run import OTHERS, RESULTS
from lessons_lib import generate, load
from lessons_lib.attention.backends import BACKENDS
from lessons_lib.decoding.probing import repeatable_step
from lessons_lib.decoding.targets import CompiledTarget, DecoderTarget
from lessons_lib.measure import machine
from lessons_lib.measure.clock import QUICK, timed
from lessons_lib.measure.config import CONFIGS, ModelConfig
from lessons_lib.measure.profiler import peak_bytes
from lessons_lib.models import LanguageModel, ModelUnavailable
from lessons_lib.models.decoder import Decoder
from lessons_lib.models.tiny_models import random_network
from lessons_lib.paths import write_whole
from lessons_lib.progress import say
from lessons_lib.quantization import bytes_read, quantize_model

DEFAULT = CONFIGS["smollm2-135m"]
LARGE = {
    "1B": ModelConfig("llama-3.2-1b", 16, 2048, 32, 8, 64, 8192, 128256, 8192),
    "Llama-2-7B": CONFIGS["llama-2-7b"],
}
FORMATS = (None, "W8A16", "W4A16", "W8A8")  # formats of the steps; None: bf16
WEIGHT_ONLY = (None, "W8A16", "W4A16")  # formats of the ladder, as in gpt-fast; None: bf16
CLAIMED = ("serving/continuous-vs-static", "serving/vs-generate-batch", "serving/vs-sequential")
SHORT = {"repeats": "1", "max_new_tokens": "24", "timed_tokens": "8", "longest": "512", "study_requests": "200",
         "num_questions": "4", "text_tokens": "1000"}  # fmt: skip


@dataclass(frozen=True)
class Setup:
    """Where to measure. tiny: in miniature. graphs: whether the device captures CUDA graphs."""

    device: str = "cuda"
    results: Path = RESULTS / "gpu.json"
    tiny: bool = False
    graphs: bool = True

    @property
    def dtype(self) -> torch.dtype:
        return torch.float32 if self.tiny else torch.bfloat16

    def sized(self, config: ModelConfig) -> ModelConfig:
        """The config, or a miniature of it."""
        small = dict(num_layers=2, hidden_size=64, num_heads=4, num_kv_heads=2, head_dim=16, intermediate_size=96)
        return replace(config, **small, vocab_size=96, max_position_embeddings=512) if self.tiny else config


@dataclass(frozen=True)
class Task:
    """One measurement, which fills these columns of a part's row; without columns, the row is the list of values."""

    row: str
    columns: Sequence[str]
    measure: Callable[[], Sequence]


def main(args: Sequence[str] | None = None) -> int:
    """Measure and store the named parts (default: all); returns the exit status, 1 if there is no such device."""
    parser = argparse.ArgumentParser(description="Measure a GPU, part by part.")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; default: all")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--results", type=Path, metavar="FILE")
    parser.add_argument("--tiny", action="store_true", help="in miniature, to try the script")
    parser.add_argument("--here", action="store_true", help="in this process, without time limits")
    options = parser.parse_args(args)
    if unknown := [part for part in options.parts if part not in PARTS]:
        parser.error(f"{', '.join(unknown)}: no part of bench.on_gpu; there are {', '.join(PARTS)}")
    if options.device == "cuda" and not torch.cuda.is_available():
        say("bench.on_gpu measures a GPU, and there is none here; --device cpu --tiny tries the script")
        return 1
    parts = options.parts or list(PARTS)
    into = options.results or (OTHERS / "gpu-tiny.json" if options.tiny else RESULTS / "gpu.json")
    # in this process
    if options.here:
        setup = Setup(options.device, into.resolve(), options.tiny, options.device == "cuda")
        try:
            for part in parts:
                measure(part, setup)
        except ValueError as error:
            say(str(error))
            return 1
        return 0
    shared = ["--device", options.device, "--results", str(into), *(["--tiny"] if options.tiny else [])]
    # each part in a process of its own, under its time limit
    for part in parts:
        command = [sys.executable, "-m", "bench.on_gpu", part, "--here", *shared]
        say(run_limited(command, PARTS[part][0]) or f"{part}: done")
    return 0


def run_limited(command: Sequence[str], seconds: float) -> str | None:
    """Run a command; at the time limit, stop it and its child processes. Returns an error message or None."""
    process = subprocess.Popen(command, start_new_session=True)
    try:
        status = process.wait(seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return f"{command[3]}: stopped after {seconds:.0f} s; what it had measured is stored"
    return f"{command[3]}: ended with status {status}" if status else None


def measure(part: str, setup: Setup) -> None:
    """Run the tasks of a part whose numbers are not stored yet. A failing task is reported and skipped.

    Raises ValueError if the numbers stored of this part are of another machine, or in miniature where these are not.
    """
    host = {name: fact for name, fact in machine.host(setup.device).items() if name != "load"}
    host |= {"in miniature": True} if setup.tiny else {}
    about = {"host": host, "versions": machine.versions()}
    stored = read(setup.results)
    before = stored.get(f"{part} on")
    if before and before["host"] != host:
        raise ValueError(f"{setup.results} holds {part} of another machine or size; choose another file with --results")
    rows = stored.get(part, {}) if before == about else {}
    for task in PARTS[part][1](setup):
        if task.row in rows and set(task.columns) <= set(rows[task.row]):
            continue
        try:
            values = task.measure()
        except Exception as error:  # out of memory, or a kernel missing in this torch: continue with the other tasks
            say(f"{part}, {task.row}: {type(error).__name__}: {error}"[:500])
            continue
        if task.columns:
            rows.setdefault(task.row, {}).update(zip(task.columns, values, strict=True))
        else:
            rows[task.row] = values
        write(setup.results, read(setup.results) | {part: rows, f"{part} on": about})


def read(path: Path) -> dict:
    """Read the stored results."""
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def write(path: Path, found: dict) -> None:
    """Store results: an interrupted process leaves the old file or the new one."""
    write_whole(path, json.dumps(found, indent=1) + "\n")


# -- models ----------------------------------------------------------------------------------------------------------


@cache
def random_decoder(setup: Setup, config: ModelConfig, weights: str | None) -> Decoder:
    """A decoder of these sizes, or in miniature, with random weights, quantized if a format is named."""
    if weights:
        return quantize_model(random_decoder(setup, config, None), weights)
    config = setup.sized(config)
    with torch.device("meta"):
        decoder = Decoder(config).to(setup.dtype)
    cos, sin = (table.to(setup.device, setup.dtype) for table in (decoder.cos, decoder.sin))
    decoder.to_empty(device=setup.device).requires_grad_(False).eval()
    decoder.cos, decoder.sin = cos, sin
    if config.tie_word_embeddings:
        decoder.head.weight = decoder.embedding.weight
    torch.manual_seed(0)
    for weight in decoder.parameters():
        weight.normal_(0, 0.02) if weight.dim() == 2 else weight.fill_(1)
    return decoder


def ways(decoder: Decoder, setup: Setup, context: int) -> dict[str, Callable[[], DecoderTarget]]:
    """Targets for each way to run a decoder: eager, eager as CUDA graph, compiled, compiled as CUDA graph.

    The step is compiled once.
    """

    def captured_eager() -> CompiledTarget:
        target = CompiledTarget(decoder, context=context, cuda_graph=setup.graphs)
        target.problem = "left uncompiled here"
        return target

    @cache
    def compiled() -> CompiledTarget:
        target = CompiledTarget(decoder, context=context, cuda_graph=False)
        repeatable_step(target, [1, 2, 3])()
        if target.problem:
            raise RuntimeError(target.problem)
        return target

    def captured_compiled() -> CompiledTarget:
        target = compiled()
        target.captures = setup.graphs
        return target

    found = {"eager": lambda: DecoderTarget(decoder), "eager graph": captured_eager}
    return found | {"compiled": compiled, "graph": captured_compiled}


@cache
def bandwidth(device: str) -> float:
    """Measured read bandwidth of this device in bytes/s."""
    return machine.streams(device)[1]


# -- parts -----------------------------------------------------------------------------------------------------------


def steps(setup: Setup) -> Iterator[Task]:
    """Milliseconds of a step after 64 tokens, quick measurements first; limit: its bytes over the bandwidth."""
    formats = {weights or "bf16": partial(random_decoder, setup, DEFAULT, weights) for weights in FORMATS}
    for columns in (("eager", "eager graph", "limit"), ("compiled", "graph")):
        for name, of in formats.items():
            yield Task(name, columns, partial(step_times, of, columns, setup))


def step_times(of: Callable[[], Decoder], columns: Sequence[str], setup: Setup) -> list[float]:
    """Milliseconds of a step in each of these modes."""
    decoder = of()
    targets = ways(decoder, setup, context=128)
    limit = 1e3 * bytes_read(decoder) / bandwidth(setup.device)
    return [limit if way == "limit" else step_time(targets[way](), setup) for way in columns]


def step_time(target: DecoderTarget, setup: Setup) -> float:
    """Milliseconds of a one-token step after 64 tokens."""
    call = repeatable_step(target, [50] * 64)  # the time does not depend on the tokens
    return 1e3 * timed(call, setup.device, repeats=31, warmup=3).median


def ladder(setup: Setup) -> Iterator[Task]:
    """Tokens per second after the prompt; share: the share of the bandwidth that their bytes use."""
    for columns in (("eager graph", "eager graph share", "eager"), ("graph", "graph share")):
        for size, config in LARGE.items():
            for weights in WEIGHT_ONLY:
                of = partial(random_decoder, setup, config, weights)
                yield Task(f"{size} {weights or 'bf16'}", columns, partial(speeds, of, columns, setup))


def speeds(of: Callable[[], Decoder], columns: Sequence[str], setup: Setup) -> list[float]:
    """Tokens per second of each mode; a share belongs to the mode before it."""
    decoder, found = of(), []
    targets = ways(decoder, setup, context=256)
    for column in columns:
        if column.endswith(" share"):
            found.append(found[-1] * bytes_read(decoder) / bandwidth(setup.device))
        else:
            found.append(tokens_per_second(targets[column](), setup))
    return found


def tokens_per_second(target: DecoderTarget, setup: Setup) -> float:
    """Greedy decoding after a short prompt: time of a long text minus that of one token, which is the prefill."""
    count = 8 if setup.tiny else 32

    def write(tokens: int) -> None:
        generate(target, [1, 2, 3, 4, 5], max_new_tokens=tokens, min_new_tokens=tokens)

    one, all_of_them = (timed(partial(write, n), setup.device, repeats=3, warmup=1).median for n in (1, 1 + count))
    return count / (all_of_them - one)


def attention(setup: Setup) -> Iterator[Task]:
    """Milliseconds and peak MB of causal attention of one sequence, with 32 heads of 128 as in Llama-2-7B."""
    heads, dim = (2, 16) if setup.tiny else (32, 128)
    for length in (64, 128) if setup.tiny else (1024, 2048, 4096, 8192, 16384):
        make = partial(torch.randn, 3, heads, length, dim, device=setup.device, dtype=setup.dtype)
        for way in ("naive", *BACKENDS):
            yield Task(str(length), [way, f"{way} MB"], partial(attention_cost, way, make, setup))


def attention_cost(way: str, make: Callable[[], torch.Tensor], setup: Setup) -> list[float]:
    """[ms, peak MB]. Raises RuntimeError for a backend that does not run here, and if memory runs out."""
    q, keys, values = make()
    if way == "naive":
        return time_and_memory(partial(naive, q, keys, values), setup)
    call = partial(scaled_dot_product_attention, q[None], keys[None], values[None], is_causal=True)
    with sdpa_kernel(SDPBackend.__members__[way]):
        return time_and_memory(call, setup)


def time_and_memory(call: Callable[[], torch.Tensor], setup: Setup) -> list[float]:
    """[ms, peak MB] of a call."""
    return [1e3 * timed(call, setup.device, repeats=7, warmup=1).median, peak_bytes(call, setup.device) / 1e6]


def naive(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Causal attention as lesson 04 builds it, in the inputs' dtype: three tensors (H, T, d) -> (H, T, d).

    The library's naive form and the backend MATH compute in float32, which costs a GPU far more time than 16 bits.
    """
    scores = (q @ keys.mT).mul_(q.shape[-1] ** -0.5)
    future = torch.ones(scores.shape[1:], dtype=torch.bool, device=q.device).triu(1)
    return scores.masked_fill_(future, -torch.inf).softmax(-1) @ values


def engine(setup: Setup) -> Iterator[Task]:
    """The claims of serving: value, low, high, note, as a list, which RESULTS.md and lesson 05 read."""
    lm = cache(partial(language_model, setup))
    for name in CLAIMED:
        yield Task(name, (), partial(claimed, name, lm, setup))


def claimed(name: str, lm: Callable[[], LanguageModel], setup: Setup) -> list:
    """Measure one claim of bench/serving.py on this setup's model."""
    serving.model = lm
    found = CLAIMS[name].measure(Run(quick=setup.tiny))
    return [found.ratio.value, found.ratio.low, found.ratio.high, found.note]


def language_model(setup: Setup) -> LanguageModel:
    """smollm2-135m, or random weights of its sizes if it cannot be fetched: the engine's speed is the same."""
    c = setup.sized(DEFAULT)
    try:
        if not setup.tiny:
            return load(c.name, setup.device, setup.dtype)
    except ModelUnavailable as missing:
        say(f"{missing}; random weights serve instead")
    config = LlamaConfig(
        vocab_size=c.vocab_size, hidden_size=c.hidden_size, intermediate_size=c.intermediate_size,
        num_hidden_layers=c.num_layers, num_attention_heads=c.num_heads, num_key_value_heads=c.num_kv_heads,
        head_dim=c.head_dim, max_position_embeddings=c.max_position_embeddings, bos_token_id=None, eos_token_id=None,
        pad_token_id=None, tie_word_embeddings=c.tie_word_embeddings,
    )  # fmt: skip
    return LanguageModel(random_network(config, setup.dtype).to(setup.device), None, c.name, setup.device, setup.dtype)


def lessons(setup: Setup) -> Iterator[Task]:
    """Seconds of every lesson with short parameters, and where it failed."""
    from lessons_lib.course import lessons as course

    found = course.find()
    values = course.overrides({lesson: course.parameters(lesson) for lesson in found}, {"device": setup.device} | SHORT)
    for lesson in found[:1] if setup.tiny else found:
        yield Task(lesson.name, ("seconds", "failure"), partial(lesson_time, lesson, values[lesson], setup))


def lesson_time(lesson, values: dict, setup: Setup) -> list:
    """Execute one lesson into build/on-gpu, with the fewest repeats."""
    from lessons_lib.course import runner

    os.environ[QUICK] = "1"
    folder = runner.BUILD / "on-gpu"
    folder.mkdir(parents=True, exist_ok=True)
    result = runner.execute(lesson, values, folder)
    return [result.seconds, result.failure]


def commands(setup: Setup) -> Iterator[Task]:
    """Seconds of the commands for one's own model, and the last line of what failed."""
    answer = ("generate", "Why is the sky blue?", "--max-new-tokens", "8", "--proposer", "prompt-lookup")
    folder = str(OTHERS / "on-gpu")
    calls = [answer, ("probe",), ("compare", "--max-new-tokens", "32", "--minutes", "0.3", "--output", folder)]
    for call in calls[:1] if setup.tiny else calls:
        yield Task(call[0], ("seconds", "failure"), partial(command_time, call, setup))


def command_time(call: Sequence[str], setup: Setup) -> list:
    """Run one command in a process of its own, as a user would."""
    start = time.perf_counter()
    command = [sys.executable, "-m", "lessons_lib", *call, "--device", setup.device]
    done = subprocess.run(command, capture_output=True, text=True)
    failure = (done.stderr.strip().splitlines() or ["ended"])[-1] if done.returncode else ""
    return [time.perf_counter() - start, failure]


PARTS: dict[str, tuple[int, Callable[[Setup], Iterator[Task]]]] = {
    "steps": (90, steps), "ladder": (120, ladder), "attention": (30, attention), "serving": (90, engine),
    "lessons": (90, lessons), "commands": (60, commands),
}  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
