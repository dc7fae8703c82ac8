"""Claims of lesson 09: smol-medusa with smollm2-135m, greedy. All three come from one measurement.

Each target gets the tree that is fastest given the heads' accuracies and the cost of a step of each width on this
machine. That cost is the forward pass (the width curve) and everything beside it, both timed apart from any text.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import torch

from bench import common, questions
from bench.assisted import KINDS
from bench.common import Measured, Run, claim, costs_of, fingerprint, listed, mean_rate, off_by, prompt_of
from bench.questions import (
    EAGER,
    TAUGHT,
    answered,
    asked,
    by_category,
    in_steps,
    measured,
    speed,
    tokens_fed,
    tokens_per_pass,
    with_and_without,
)
from lessons_lib import Medusa
from lessons_lib.decoding.generate import draft, new_sequence, step, verify
from lessons_lib.decoding.probing import repeatable_step
from lessons_lib.decoding.proposers.medusa import MedusaHeads, load_heads
from lessons_lib.decoding.proposers.tree_shape import Accuracies, TreeShape, best_size, best_tree
from lessons_lib.measure.clock import in_turn, rate_ratio
from lessons_lib.measure.cost import width_cost
from lessons_lib.models import read_card

HEADS = "smol-medusa"
WIDTHS = (1, 2, 4, 6, 8, 11, 16, 24, 32, 48, 64)  # tokens of a step (root and tree) if nothing is compiled
CACHED = 300  # cached tokens for all timings
PER_KIND = 3  # questions of each kind


@cache
def heads() -> MedusaHeads:
    """The packaged heads."""
    return load_heads(HEADS, common.model())


def accuracies() -> Accuracies:
    """Accuracy of each head's i-th most likely token on validation texts, from the heads' card."""
    return read_card(HEADS)["after"]["accuracies"]


@dataclass(frozen=True)
class Fitted:
    """Medusa on one target: its tree, and the costs by which it was chosen, in units of a one-token pass.

    v: {w: a pass over w tokens}. heads_share: {w: everything a step with w - 1 draft tokens does beside its pass, minus
    the same for plain decoding}. Commits, which copy a few entries of the cache, are left out.
    """

    tree: TreeShape
    v: dict[int, float]
    heads_share: dict[int, float]

    def overhead(self, rows: float) -> float:
        """Cost of a step of `rows` tokens relative to a plain step."""
        return width_cost(self.v)(rows) + width_cost(self.heads_share)(rows)


def widths_of(target) -> Sequence[int]:
    """The compiled widths of a target; WIDTHS if it is not compiled."""
    return getattr(target, "widths", None) or WIDTHS


@cache
def fitted(target, repeats: int) -> Fitted:
    """The fastest tree of the timed widths; for a compiled target these are its compiled widths."""
    widths = widths_of(target)
    v, share = costs_of(target, widths, repeats, CACHED), shares(target, widths, repeats)
    sizes = [width - 1 for width in widths if width > 1]
    nodes = best_size(accuracies(), {width: v[width] + share[width] for width in widths}, sizes=sizes)
    return Fitted(best_tree(accuracies(), nodes), v, share)


def shares(target, widths: Sequence[int], repeats: int) -> dict[int, float]:
    """heads_share for Fitted. The first width must be 1, plain decoding."""
    trees = {width: best_tree(accuracies(), width - 1) for width in widths}
    calls = {width: around(target, Medusa(heads(), tree)) for width, tree in trees.items()}
    found = in_turn(calls | {"forward": repeatable_step(target, prompt_of(CACHED))}, repeats=repeats)
    more = {width: found[width].median - found[widths[0]].median for width in widths}
    return {width: seconds / found["forward"].median for width, seconds in more.items()}


@torch.no_grad()
def around(target, proposer: Medusa) -> Callable[[], tuple]:
    """A function that does all of a step except the forward pass and the commit: draft, lay out the tree, verify."""
    row = new_sequence(target, prompt_of(CACHED), proposer, None, questions.TOKENS, questions.TOKENS)
    step(target, [row])  # the prefill, which gives the proposer a hidden state
    (scores,) = target.run(draft([row]))
    row.cache.keep(len(row.ids) - 1)

    @torch.no_grad()
    def again() -> tuple:
        draft([row])
        return verify(row, scores)

    return again


def trees(run: Run) -> dict[str, Fitted]:
    """Medusa fitted to every target, by the target's state."""
    return {state.strip() or "eager": fitted(of, run.repeats) for state, of in questions.targets(run).items()}


def nodes(of: Fitted) -> int:
    """Draft tokens per step: nodes of the tree."""
    return len(of.tree.choices)


def settings(chosen: dict[str, Fitted]) -> dict:
    """What was measured, for the raw results."""
    sizes = {state: nodes(of) for state, of in chosen.items()}
    return {"heads": HEADS, "weights": fingerprint(heads()), "nodes": sizes}


@cache
def rows(run: Run) -> list[dict]:
    """Plain decoding and Medusa, eager and compiled, on PER_KIND questions of every kind."""
    trees(run)  # chosen before any text is timed
    by = lambda of: Medusa(heads(), fitted(of, run.repeats).tree)  # noqa: E731
    methods = lambda ids: with_and_without(run, ids, "medusa", by)  # noqa: E731
    return asked(run, KINDS, PER_KIND, methods)


@claim(
    "medusa/tokens-per-forward", ">= 2.1",
    f"plain decoding (1 token per pass); mean of {', '.join(KINDS)}; {EAGER}, counted; {HEADS}", asks=TAUGHT,
    says="With Medusa's heads, a forward pass gives {number} tokens",
    missed="The heads are right too rarely: the most likely token of the first head is right 45% of the time. They "
    "are small (3.9 MB) and were trained for 23 minutes on a CPU. The tree that is fastest here has 7 nodes; with 63 "
    "nodes it would still be 1.89 tokens.",
)  # fmt: skip
def tokens(run: Run) -> Measured:
    counted, eager = answered(rows(run)), fitted(common.eager(), run.repeats)
    kinds = by_category(counted)
    counts = [in_steps(of, "medusa") for of in kinds.values()]
    tau = {kind: tokens_per_pass(of, "medusa") for kind, of in kinds.items()}
    together, expected = tokens_per_pass(counted, "medusa"), eager.tree.expected_tokens(accuracies())
    note = f"{listed(tau)}; all questions together {together:.2f}; {nodes(eager)} nodes, predicted {expected:.2f}"
    facts = {"tokens_per_pass": tau, "together": together, "expected": expected, "choices": eager.tree.choices}
    return Measured(mean_rate(counts), note, facts | {"settings": settings(trees(run)), "unit": "passes per token"})


@claim(
    "medusa/vs-plain", ">= 1.35",
    f"plain: {EAGER}; {HEADS}, each target with the tree that is fastest by its width curve", asks=TAUGHT,
    says="Medusa makes decoding {times} as fast as plain decoding, over seven kinds of questions",
    missed="It follows from the tokens per pass: 1.61 tokens per step, at 1.35 times the cost of a plain step, make "
    "1.19 without the prefill.",
)  # fmt: skip
def vs_plain(run: Run) -> Measured:
    found, chosen = rows(run), trees(run)
    sizes = "tree: " + ", ".join(f"{state} {nodes(of)} nodes" for state, of in chosen.items())
    facts = {name: {state: getattr(of, name) for state, of in chosen.items()} for name in ("v", "heads_share")}
    facts["settings"] = settings(chosen)
    return measured(found, speed, "plain", "medusa", sizes, chosen["eager"].overhead, **facts)


@claim(
    "medusa/identity", "<= 0.10",
    "speedup = tokens per step / cost of a step, prefill excluded; the cost is predicted from the width curve and the "
    f"heads' share of a step, timed apart; {EAGER}", asks=TAUGHT, unit="",
    says="Medusa's measured speedup differs by {percent} from the formula: tokens per step divided by the predicted "
    "cost of a step",
)  # fmt: skip
def identity(run: Run) -> Measured:
    """|speedup / (tokens per step / overhead) - 1|, as in Cai et al. 2024 (arXiv 2401.10774), table 1.

    Speedup and tokens per step are measured in this run, without the prefill. The overhead is not taken from this run's
    step times, because then the identity would hold trivially. It is v(w) + heads_share(w), timed separately after
    another text, at the mean number of tokens per pass. The rest is due to other lengths, commits, and caches that
    other work evicted.
    """
    counted, eager = answered(rows(run)), fitted(common.eager(), run.repeats)
    plain, drafted = ([row[name] for row in counted] for name in ("plain", "medusa"))
    fed = tokens_fed(counted, "medusa")
    # predicted overhead at this run's mean width
    overhead, tau = eager.overhead(fed), tokens_per_pass(counted, "medusa")
    # measured speedup against tokens per step over this overhead
    ratio = rate_ratio(steps(plain), steps(drafted, overhead))
    sped = ratio.value * tau / overhead
    note = (
        f"speedup {sped:.2f} ({speed(counted, 'plain', 'medusa').value:.2f} with the prefill), {tau:.2f} tokens per "
        f"step of {fed:.1f} input tokens, cost of a step {overhead:.2f} predicted, {tau / sped:.2f} measured"
    )
    facts = {
        "speedup": sped,
        "tokens_per_pass": tau,
        "rows": fed,
        "overhead": overhead,
        "v": eager.v,
        "heads_share": eager.heads_share,
    }
    return Measured(off_by(ratio), note, facts | {"ratio": ratio.value, "unit": "s per plain step, predicted"})


def steps(made: list[dict], overhead: float = 1.0) -> list[tuple[float, float]]:
    """For each text (steps in units of plain steps, seconds), prefill left out.

    The ratio of these rates, Medusa over plain decoding, is speedup times overhead over tokens per step.
    """
    return [(overhead * (of["forward_passes"] - 1), of["seconds"] - of["prefill"]) for of in made]
