"""Claims of lesson 06 that are timed: smol-draft drafts for smollm2-135m, greedy."""

from collections.abc import Callable, Sequence
from functools import cache, partial
from hashlib import sha256

import torch

from bench import asking
from bench.asking import DTYPE, EAGER, TAUGHT, asked, costs_of, measured, ours, prompt_of, theirs, with_and_without
from bench.by_question import speed
from bench.registry import Measured, Run, claim
from lessons_lib import DraftModel, load
from lessons_lib.decoding.draft_tree import DraftTree
from lessons_lib.decoding.peers import assist
from lessons_lib.decoding.probing import repeatable_step
from lessons_lib.measure.clock import Ratio, Samples, in_turn
from lessons_lib.measure.speculation import width_cost

GAMMA = 4  # tokens drafted per step, wherever the length is fixed
KINDS = ("chat", "summarization", "qa", "code", "math", "writing", "lists")
CACHED = 200  # tokens behind which one forward's cost is taken


@cache
def draft():
    """smol-draft on the CPU in DTYPE. ModelUnavailable if it cannot be read."""
    return load("smol-draft", device="cpu", dtype=DTYPE)


@cache
def settings() -> dict:
    """What a measurement depends on: another draft, even of the same name, needs another one."""
    return {"draft": "smol-draft", "weights": fingerprint(draft().network), "gamma": GAMMA}


def fingerprint(network: torch.nn.Module) -> str:
    """The first 16 digits of the SHA-256 of a network's tensors."""
    digest = sha256()
    for name, tensor in network.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.cpu().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()[:16]


@cache
def drafting():
    """The draft as DraftModel uses it fastest: its readable decoder, eager, with products in 8 bits."""
    return draft().target()


@cache  # the tokenizers are compared once, not for every text
def drafter(target) -> DraftModel:
    """The proposer of all texts that this target writes."""
    return DraftModel(drafting(), GAMMA)


def assistant():
    """The same draft as transformers takes it, told to draft GAMMA tokens at every step."""
    assist(draft().network, GAMMA)
    return draft().network


def chain_step(target, prompt: Sequence[int], draft=None) -> Callable[[], None]:
    """A function that drafts GAMMA tokens behind the prompt, everything around the forwards included.

    draft: a target of the draft's (None: `drafting`).
    """
    by = DraftModel(draft or drafting(), GAMMA)
    by.reset(target, prompt)
    by.propose(prompt, DraftTree(max_depth=GAMMA))

    def again() -> None:
        by.cache.keep(len(prompt) - 1)
        by.propose(prompt, DraftTree(max_depth=GAMMA))

    return again


@cache
def cost_of_draft(repeats: int, target) -> tuple[Ratio, Ratio]:
    """(c, c with all that DraftModel does around a forward): seconds per guess over those of a one-row target forward.

    GAMMA guesses are made in a row, as they are between two steps of the target, which empties the CPU's caches.
    """
    prompt = prompt_of(CACHED)
    one, guess = repeatable_step(target, prompt), repeatable_step(drafting(), prompt)
    calls = {"forward": lambda: [guess() for _ in range(GAMMA)], "one": one, "chain": chain_step(target, prompt)}
    found = in_turn(calls, repeats=repeats)
    each = [Samples(tuple(time / GAMMA for time in found[name].times)) for name in ("forward", "chain")]
    return Ratio.of(each[0], found["one"]), Ratio.of(each[1], found["one"])


@claim(
    "draft/cost", "<= 0.10",
    f"one row of the eager {DTYPE} DecoderTarget; a guess: one row of smol-draft's eager {DTYPE} decoder, whose "
    f"matrices, stored in 8 bits, stay so in memory where that is bf16; both behind {CACHED} cached tokens",
)  # fmt: skip
def cost(run: Run) -> Measured:
    forward, whole = cost_of_draft(5 * run.repeats, asking.eager())
    said = f"{whole.value:.3f} with the choice of each guess and all else that DraftModel does"
    return Measured(forward, said, {"whole": [whole.value, whole.low, whole.high], "settings": settings()})


@claim("assisted/mixed/vs-plain", ">= 1.25", f"plain: {EAGER}; smol-draft drafts {GAMMA} tokens a step", asks=TAUGHT)
def mixed(run: Run) -> Measured:
    methods = lambda ids: with_and_without(run, ids, "assisted", drafter)  # noqa: E731
    rows = asked("assisted/mixed/vs-plain", run, KINDS, 4, methods, settings())
    on = {state.strip() or "eager": of for state, of in asking.targets(run).items()}
    v = {state: costs_of(of, (1, GAMMA + 1), run.repeats) for state, of in on.items()}
    dear = ", ".join(f"{state} {costs[GAMMA + 1]:.2f}" for state, costs in v.items())
    note = f"cost of {GAMMA + 1} rows: {dear}"
    drafting = GAMMA * cost_of_draft(run.repeats, asking.eager())[1].value
    overhead = lambda fed: width_cost(v["eager"])(fed) + drafting  # noqa: E731
    return measured(rows, speed, "plain", "assisted", settings(), note, overhead, width_costs=v)


@claim(
    "assisted/vs-transformers", ">= 1.2",
    f"transformers generate(assistant_model=), {GAMMA} tokens a step, constant, no confidence threshold, "
    f"{DTYPE}, eager; ours: the same pair and settings on DecoderTargets, few rows of the draft in "
    "8 bits", asks=TAUGHT,
)  # fmt: skip
def vs_transformers(run: Run) -> Measured:
    network, by_network = asking.model().target(kind="transformers"), DraftModel(draft(), GAMMA)

    def methods(ids):
        both = {f"ours{state}": partial(ours, of, ids, drafter(of)) for state, of in asking.targets(run).items()}
        both |= {"loop": partial(ours, network, ids, by_network)}
        return {"theirs": partial(theirs, ids, draft=assistant())} | both | asking.plain_beside(run, ids)

    rows = asked("assisted/vs-transformers", run, KINDS, 3, methods, settings(), like=asking.BESIDE.get)
    return asking.over_transformers(rows, settings())
