"""Claims of lessons 01-03: the loop's overhead, the KV cache, the readable decoder eager and compiled.

`python -m bench.decoding` times transformers' ways to a static cache and a compiled step, for the table of lesson 03.
"""

import json
from collections.abc import Iterator
from functools import cache, partial
from time import perf_counter

import torch
from transformers import StaticCache

from bench import common
from bench.common import Measured, Run, claim
from lessons_lib import generate
from lessons_lib.data import RESULTS
from lessons_lib.decoding.peers import by_transformers, static_and_compiled
from lessons_lib.decoding.targets import Target, TransformersTarget
from lessons_lib.decoding.timing import batched_step, clocked_transformers
from lessons_lib.measure import cost, machine
from lessons_lib.measure.clock import Ratio, Timeline, compare, timed
from lessons_lib.progress import say

PROMPT = (
    "A lighthouse keeper writes a letter to the next keeper of the light. It says what to do in a storm, when the "
    "fog comes in, and how to keep the lamp burning through the night. Dear friend,"
)
CONTEXT = 176  # slots of the compiled targets' caches: just enough, because every step reads them all
THEIRS = "transformers generate, greedy, dynamic cache, eager"


@cache
def compiled_target(dtype: str):
    """The compiled decoder, with caches of CONTEXT tokens."""
    return common.model(dtype).target(compiled=True, context=CONTEXT)


def theirs(dtype: str, count: int):
    """A call of transformers' generate for exactly `count` new tokens."""
    return partial(by_transformers, common.model(dtype).network, common.model(dtype).tokenizer(PROMPT).input_ids, count)


def ours(of, count: int):
    """A call of our generate for exactly `count` new tokens."""
    return lambda: generate(of, PROMPT, max_new_tokens=count, min_new_tokens=count)


@claim(
    "generate/overhead", "<= 1.03", f"{THEIRS}, bf16; ours: TransformersTarget", dtype="bf16",
    says="Our decoding loop takes {times} the time of transformers' generate for the same forward passes",
)  # fmt: skip
def overhead(run: Run) -> Measured:
    network = TransformersTarget(common.model("bf16").network, common.model("bf16").tokenizer)
    return Measured(compare(ours(network, run.tokens), theirs("bf16", run.tokens), repeats=run.repeats, warmup=1))


@claim(
    "cache/512/vs-uncached", ">= 8", "the same network, bf16, one forward pass over all 513 tokens", dtype="bf16",
    says="After 512 tokens, a decode step with a KV cache is {times} as fast as a pass over the whole text",
)  # fmt: skip
def cached(run: Run) -> Measured:
    network = common.model("bf16").network
    ids = torch.randint(3, 49_000, (1, 513), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        state = network(ids[:, :512], use_cache=True).past_key_values

        def step():
            network(ids[:, 512:], past_key_values=state)
            state.crop(-1)

        return Measured(compare(lambda: network(ids, logits_to_keep=1), step, repeats=3 * run.repeats, warmup=2))


@claim(
    "decoder/eager/vs-generate", ">= 1.2", f"{THEIRS}, bf16; ours: DecoderTarget, bf16, nothing compiled",
    dtype="bf16", says="Our readable decoder, with nothing compiled, is {times} as fast as transformers' generate",
)  # fmt: skip
def eager(run: Run) -> Measured:
    calls = theirs("bf16", run.tokens), ours(common.eager("bf16"), run.tokens)
    return Measured(compare(*calls, repeats=run.repeats, warmup=1))


@claim(
    "decoder/bf16/vs-generate", ">= 3.0", f"{THEIRS}, bf16; ours: CompiledTarget, bf16, 176 positions", dtype="bf16",
    says="Our decoder, compiled with a static cache, is {times} as fast as transformers' generate in bf16",
)  # fmt: skip
def bf16(run: Run) -> Measured:
    return compiled("bf16", run)


@claim(
    "decoder/fp32/vs-generate", ">= 2.7", f"{THEIRS}, fp32; ours: CompiledTarget, fp32, 176 positions", dtype="fp32",
    says="Our decoder, compiled with a static cache, is {times} as fast as transformers' generate in fp32",
)  # fmt: skip
def fp32(run: Run) -> Measured:
    return compiled("fp32", run)


@claim(
    "decoder/bf16/of-bandwidth-limit", ">= 0.7", "reading the bytes of a step; 8 reads and 8 steps in alternation",
    dtype="bf16", says="A compiled bf16 decode step reaches {percent} of the speed at which this machine reads memory",
)  # fmt: skip
def of_limit(run: Run) -> Measured:
    """Time to read the bytes that a step must read, over the time of the step.

    Measured in groups of eight: a single read between two steps would evict data that consecutive steps find cached.
    """
    of, rounds = compiled_target("bf16"), 2 * run.repeats
    prompt, eight = of.tokenizer(PROMPT).input_ids, range(8)
    moved = cost.bytes_decode(common.model("bf16").shape, 1, len(prompt) + 4 * rounds)
    buffer, forward = torch.ones(moved // 4), batched_step(of, prompt, 1)
    forward()  # compiles
    both = (lambda: [buffer.sum() for _ in eight]), (lambda: [forward() for _ in eight])
    note = of.problem or ""
    return Measured(compare(*both, repeats=rounds, warmup=1), note, {"bytes": 8 * moved})


def over_generate(of: Target, dtype: str, run: Run) -> Ratio:
    """Speedup of one of our targets over transformers' generate; compile time is excluded."""
    timed(ours(of, 4), repeats=1, warmup=1)
    return compare(theirs(dtype, run.tokens), ours(of, run.tokens), repeats=run.repeats, warmup=1)


def compiled(dtype: str, run: Run) -> Measured:
    """Speedup of our compiled decoder in this dtype over transformers' generate; compile time is kept apart."""
    of = compiled_target(dtype)
    ratio = over_generate(of, dtype, run)
    seconds = of.compile_seconds.get(1)
    note = of.problem or f"compiled in {seconds:.0f} s"
    return Measured(ratio, note, {"compile_seconds": seconds})


# --- The ways of transformers to a static cache and a compiled step (lesson 03)

BASE = "generate, growing cache"  # eager


def decode_one_token(network, token: torch.Tensor, position: torch.Tensor, cache: StaticCache) -> torch.Tensor:
    """token, position (1, 1) -> the next token (1, 1)."""
    logits = network(token, position_ids=position, past_key_values=cache).logits
    return logits[:, -1:].argmax(-1)


@torch.no_grad()
def own_loop(network, ids: list[int], new: int, step) -> Iterator[int]:
    """Yield `new` greedy tokens after ids, with a StaticCache and one call of `step` per token."""
    cache = StaticCache(network.config, max_cache_len=len(ids) + new - 1)
    prompt = torch.tensor([ids], device=network.device)
    token = network(prompt, past_key_values=cache, logits_to_keep=1).logits.argmax(-1)
    yield token.item()
    position = torch.tensor([[len(ids)]], device=network.device)
    for _ in range(new - 1):
        token, position = step(network, token, position, cache).clone(), position + 1
        yield token.item()


def static_cache_usages(network, ids: list[int], new: int, repeats: int, backend: str = "inductor") -> dict:
    """Time each way in turn -> {"seconds": {way: seconds per token of each text}, "compile_seconds": {way: ...}}.

    Seconds per token exclude prefill. The compile time is that of the first text. Raises ValueError if a way writes
    another text than the base.
    """
    step = torch.compile(decode_one_token, dynamic=False, fullgraph=True, backend=backend)
    compiling = static_and_compiled(len(ids) + new - 1)
    compiling["compile_config"].backend = backend

    def looped() -> tuple[list[int], Timeline]:
        start, tokens, times = perf_counter(), [], []
        for token in own_loop(network, ids, new, step):
            tokens.append(token)
            times.append(perf_counter())
        return tokens, Timeline(start, times)

    ways = {
        BASE: partial(clocked_transformers, network, ids, new),
        "1. static by name": partial(clocked_transformers, network, ids, new, cache_implementation="static"),
        "2. own compiled step": looped,
        "3. compile configuration": partial(clocked_transformers, network, ids, new, **compiling),
    }
    first, texts = {}, {}
    for name, way in ways.items():
        say(f"{name} ...")
        start = perf_counter()
        texts[name] = way()[0]
        first[name] = perf_counter() - start
    if differing := [name for name, text in texts.items() if text != texts[BASE]]:
        raise ValueError(f"Other tokens than with a growing cache: {', '.join(differing)}.")
    seconds = {name: [] for name in ways}
    for _ in range(repeats):
        for name, way in ways.items():
            seconds[name].append(way()[1].tpot)
    compiled = [name for name in ways if name[0] in "23"]
    return {"seconds": seconds, "compile_seconds": {name: first[name] for name in compiled}}


def main() -> None:
    """Measure the ways on the full model in float32, and store the raw samples."""
    if warning := machine.busy_warning():
        say(warning)
    lm = common.model("fp32")
    found = static_cache_usages(lm.network, lm.tokenizer(PROMPT).input_ids, new=48, repeats=7)
    facts = {"host": machine.host(), "versions": machine.versions(), "dtype": "fp32", "unit": "s"}
    path = RESULTS / "static-cache-usages.json"
    path.write_text(json.dumps(facts | found, indent=1) + "\n", encoding="utf-8")
    say(f"stored in {path.name}")


if __name__ == "__main__":
    main()
