"""The ladder of lesson 11 on a GPU: tokens per second of each rung on the same few questions, steps as CUDA graphs.

On a GPU a step of a small model is launching: what a recorded graph gains there is what open products gain on a CPU.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from statistics import median
from time import perf_counter

import torch

from bench import medusa
from bench.prompt_lookup import GROUNDED
from lessons_lib import DraftModel, Medusa, PromptLookup, generate, load
from lessons_lib.data import questions
from lessons_lib.decoding.peers import by_transformers
from lessons_lib.decoding.proposers import Proposer
from lessons_lib.decoding.proposers.medusa import best_tree
from lessons_lib.decoding.targets import CompiledTarget
from lessons_lib.decoding.targets.base import Target
from lessons_lib.decoding.text import encode
from lessons_lib.models import LanguageModel
from lessons_lib.models.medusa import load_heads

TOKENS, GAMMA, CONTEXT, REPEATS = 128, 4, 672, 3
ASKED = {"free": (("writing",), 3), "grounded": (GROUNDED, 1)}  # categories, and questions of each
ROUNDED = ("int8-weight-only", "int4", "int8")
Write = Callable[[list[int]], Sequence[int]]
Rungs = Iterator[tuple[str, Callable[[], Write]]]


def ladder(lm: LanguageModel) -> Iterator[tuple[str, dict[str, float]]]:
    """(rung, {kind: tokens per second of whole requests}), cheapest to prepare first.

    A rung that the GPU's torch cannot run is left out, with a line that says why.
    """
    asked = {kind: list(prompts(lm, *which)) for kind, which in ASKED.items()}
    for name, make in rungs(lm):
        try:
            write = make()
            found = {kind: speed(write, several) for kind, several in asked.items()}
        except Exception as error:
            print(f"{name}: {type(error).__name__}: {error}"[:500], flush=True)
        else:
            yield name, found


def prompts(lm: LanguageModel, categories: Sequence[str], count: int) -> Iterator[list[int]]:
    """The first `count` questions of each category."""
    for category in categories:
        for question in [question for question in questions() if question.category == category][:count]:
            yield encode(lm.target(), [{"role": "user", "content": question.turns[0]}])


def speed(write: Write, prompts: Sequence[list[int]]) -> float:
    """Tokens per second over all prompts, the median of REPEATS rounds behind a text that is not timed."""
    write(prompts[0])
    found = []
    for _ in range(REPEATS):
        torch.cuda.synchronize()
        since = perf_counter()
        tokens = sum(len(write(ids)) for ids in prompts)
        found.append(tokens / (perf_counter() - since))
    return median(found)


def rungs(lm: LanguageModel) -> Rungs:
    """Every rung and what makes its writer: transformers, ours eager and recorded, rounded, each with guesses."""
    yield "generate", lambda: partial(by_transformers, lm.network, new=TOKENS)
    eager, heads = lm.target(kind="decoder"), cache(lambda: load_heads(medusa.HEADS, lm))
    draft = cache(lambda: load("smol-draft", device=lm.device, dtype=lm.dtype).target(kind="decoder"))
    yield from with_guesses("decoder", lambda: eager, draft, heads)
    small = cache(lambda: record(draft().decoder, eager, (1, 2)))
    for weights in (None, *ROUNDED):
        of = cache(lambda weights=weights: record(lm.target(weights=weights).decoder, eager, (1, 1 + GAMMA)))
        yield from with_guesses(" ".join(filter(None, ("graph", weights))), of, small, heads)


def record(decoder, like: Target, widths: Sequence[int]) -> CompiledTarget:
    """A decoder of this vocabulary whose steps of these widths are captured. RuntimeError where nothing compiles."""
    made = CompiledTarget(decoder, like.tokenizer, like.eos, CONTEXT, widths)
    if made.problem:
        raise RuntimeError(made.problem)
    return made


def with_guesses(name: str, of: Callable, small: Callable, heads: Callable) -> Rungs:
    """One target alone, then with each guesser: four guesses a step, so that one width serves all.

    of, small, heads: make the target, the draft's, and Medusa's heads, when a rung first needs them.
    """
    tree = best_tree(medusa.accuracies(), GAMMA)
    guessers = {"": Proposer, " + lookup": lambda: PromptLookup(num_tokens=GAMMA)}
    guessers |= {" + draft": lambda: DraftModel(small(), GAMMA), " + medusa": lambda: Medusa(heads(), tree)}
    for who, proposer in guessers.items():
        yield name + who, partial(writer, of, proposer)


def writer(of: Callable[[], Target], proposer: Callable[[], Proposer]) -> Write:
    """What writes TOKENS greedy tokens behind a prompt, and fails where a step could not be compiled."""
    target = of()

    def write(ids: list[int]) -> list[int]:
        out = generate(target, ids, max_new_tokens=TOKENS, min_new_tokens=TOKENS, proposer=proposer())
        if problem := getattr(target, "problem", None):
            raise RuntimeError(problem)
        return out.ids

    return write
