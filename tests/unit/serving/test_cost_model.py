"""What a rung of lesson 11 is expected to cost: bytes, this machine's rates, and parts timed apart from any text."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from statistics import median

from bench.asking import CONTEXT, DTYPE, prompt_of
from bench.registry import Run
from bench.rungs import CACHED, GUESSERS, guessed, proposer, small, targets

from bench import asking, assisted, fitting
from lessons_lib import generate
from lessons_lib.decoding.generate import Step
from lessons_lib.decoding.prediction import Recording, Rung, replay, replay_draft
from lessons_lib.decoding.proposers import Proposer
from lessons_lib.decoding.proposers.draft_length import Constant
from lessons_lib.decoding.proposers.medusa import expected_tokens
from lessons_lib.decoding.targets.base import Target
from lessons_lib.decoding.timing import launch_times
from lessons_lib.measure import machine
from lessons_lib.measure.clock import in_turn
from lessons_lib.measure.cost import StepCost, width_cost
from lessons_lib.measure.machine import DTYPES
from lessons_lib.models.quantized import bytes_read
from lessons_lib.training import evaluate


@cache
def ladder(quick: bool, repeats: int) -> list[Rung]:
    """All rungs with their prices, from bytes, this machine's rates, and parts that were timed without any text."""
    run, (loop, guess) = Run(quick), around(repeats)
    base = library(repeats)
    found = [
        Rung("generate", None, base["transformers"]),
        Rung("generate, compiled", "generate", base["compiled"]),
        Rung("decoder", "generate", replace(base["decoder"], host=loop)),
    ]
    for name, of in targets(quick).items():
        v = fitting.fitted(of, repeats).v if guessed(name) else None
        price = StepCost(bytes_read(of.decoder), entry(), rates().read_bandwidth, v=v, host=loop)
        found.append(Rung(name, "decoder" if name == "compiled" else "compiled", price))
        found += [
            Rung(f"{name} + {who}", name, with_guesses(price, who, of, run, guess)) for who in GUESSERS * guessed(name)
        ]
    return found


def library(repeats: int) -> dict[str, StepCost]:
    """Steps whose products stay calls of a library: transformers', eager and compiled, and our eager one."""
    shape, dtype = asking.model().shape, DTYPES[DTYPE]
    launch = launch_times(shape, DTYPE, CACHED, repeats=5 * repeats)
    moved = shape.weights * dtype.itemsize
    price = StepCost(moved, entry(), moved / machine.linears(shape, DTYPE, "cpu"))
    return {name: replace(price, launch=seconds) for name, seconds in launch.items()} | {
        "compiled": replace(price, slots=CONTEXT)
    }


def with_guesses(price: StepCost, who: str, of: Target, run: Run, guess: float) -> StepCost:
    """A draft's calls take what was timed; Medusa's heads, a share of a forward in every step; looking up, nothing."""
    if who != "medusa":
        return replace(price, draft=guess if who == "draft" else 0.0)
    by = fitting.fitted(of, run.repeats)
    share = width_cost(by.heads_share)(1 + len(by.tree.choices))
    return replace(price, host=price.host + share * price.forward(CACHED))


def around(repeats: int) -> tuple[float, float]:
    """(seconds between two forwards of plain decoding, seconds of one guess of the draft's)."""
    trace = generate(asking.eager(), prompt_of(32), max_new_tokens=16, min_new_tokens=16).trace[1:]
    step = assisted.chain_step(asking.eager(), prompt_of(CACHED), small())
    chain = in_turn({"chain": step}, repeats=repeats)["chain"]
    return median(step.t_total - step.t_forward for step in trace), chain.median / assisted.GAMMA


@cache
def rates() -> machine.Hardware:
    """What this machine reads and computes per second."""
    return machine.probe("cpu", [DTYPE])


def entry() -> int:
    """Bytes of one token's keys and values."""
    return asking.model().shape.kv_elements(1) * DTYPES[DTYPE].itemsize


def counted(who: str | None, ids: Sequence[int], new: Sequence[int], of: Target, run: Run) -> Sequence[Step]:
    """The trace that a text is expected to have: replayed, of Medusa predicted by its card."""
    if who == "medusa":
        return predicted_steps(len(ids), len(new) - 1, fitting.fitted(of, run.repeats))
    if who == "draft":
        steps = replay_draft(evaluate.right_in_steps(small(), ids, new), Constant(assisted.GAMMA))
        return [replace(step, length_before=len(ids) + step.length_before) for step in steps]
    return replay(Recording(ids, new), proposer(who, of, run) if who else Proposer())


def predicted_steps(prompt: int, tokens: int, by: fitting.Fitted) -> list[Step]:
    """Equal steps that commit what the tree is expected to: tokens need not be whole."""
    each = expected_tokens(by.tree, fitting.accuracies())
    nodes = len(by.tree.choices)
    return [Step(prompt + round(i * each), 1 + nodes, nodes, committed=each) for i in range(round(tokens / each))]
