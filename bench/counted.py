"""Claims of lesson 06 that are counted: smol-draft's guesses along greedy texts of held-out prompts, replayed.

A greedy text does not depend on the draft, so that one reading tells what every draft length would have made of it.
"""

from dataclasses import dataclass
from functools import cache
from itertools import zip_longest

from bench import asking
from bench.asking import DTYPE
from bench.assisted import GAMMA, cost_of_draft, drafting, settings
from bench.by_question import each, mean_rate, rate_ratio
from bench.registry import Measured, Run, claim
from lessons_lib.data import Question
from lessons_lib.decoding.proposers.draft_length import Adaptive, Constant, DraftLength
from lessons_lib.decoding.replay import predicted_cost, replay_draft
from lessons_lib.measure.clock import Ratio
from lessons_lib.measure.speculation import width_cost
from lessons_lib.training import evaluate, prompts

KINDS = prompts.CATEGORIES
MOST = 16  # the longest draft tried
HELD_OUT = "held out of training, of the kinds that smol-draft was trained on"
DRAWN = "the interval is that of the texts of each kind"
WIDTHS = (1, 2, 3, 4, 5, 6, 8, 11, 12, 17)  # the compiled target pads up to 11 rows, and runs more of them eagerly


@cache
def texts(run: Run) -> dict[str, list[dict]]:
    """Greedy answers of up to 128 tokens by category, and for every token behind the first whether it was guessed."""
    chosen = asking.chosen(run, prompts.measured(), KINDS, 2 if run.quick else prompts.PER_KIND)

    def measure(question: Question) -> list[dict]:
        turns = asking.conversation(asking.eager(), question)
        return [row | {"right": evaluate.right_in_steps(drafting(), ids, out.ids)} for row, ids, out in turns]

    depends = settings() | {"tokens": asking.TOKENS, "dtype": DTYPE}
    rows = [row for row in each("draft/texts", chosen, measure, depends) if row["right"]]
    return {kind: [row for row in rows if row["category"] == kind] for kind in asking.categories_of(chosen)}


def strings(rows: list[dict]) -> list[dict]:
    """Rows as they are stored: right and wrong as 1 and 0."""
    return [row | {"right": "".join(str(int(guess)) for guess in row["right"])} for row in rows]


@claim(
    "draft/tokens-per-forward", ">= 1.9",
    f"plain decoding (1 token a forward); mean of {', '.join(KINDS)}; greedy, up to 128 tokens each, {DTYPE}, "
    f"{GAMMA} tokens a step, counted by replay", asks=HELD_OUT,
)  # fmt: skip
def tokens_per_forward(run: Run) -> Measured:
    found = {kind: [row["right"] for row in rows] for kind, rows in texts(run).items()}
    counts = [[(len(text), len(replay_draft(text, Constant(GAMMA)))) for text in right] for right in found.values()]
    tau = {kind: evaluate.tokens_per_forward(right, GAMMA) for kind, right in found.items()}
    by_gamma = {
        gamma: evaluate.mean([evaluate.tokens_per_forward(right, gamma) for right in found.values()])
        for gamma in range(1, MOST + 1)
    }
    share = {kind: evaluate.mean([guess for text in right for guess in text]) for kind, right in found.items()}
    note = f"tokens per forward: {asking.listed(tau)}; {sum(map(len, found.values()))} texts, counted once; {DRAWN}"
    facts = {"tokens_per_forward": tau, "right": share, "by_gamma": by_gamma, "unit": "forwards per token"}
    rows = [row for of in texts(run).values() for row in strings(of)]
    return Measured(mean_rate(counts), note, facts | {"gamma": GAMMA, "texts": rows})


@claim(
    "adaptive/vs-best-fixed", ">= 0.97",
    f"each kind's best fixed draft length of 0 to {MOST}; one Adaptive over all kinds in turn; modelled time from "
    f"measured guesses and v, eager {DTYPE}; the worst kind", asks=HELD_OUT,
)  # fmt: skip
def adaptive(run: Run) -> Measured:
    kinds = {kind: [row["right"] for row in rows] for kind, rows in texts(run).items()}
    on = {state.strip() or "eager": held(kinds, of, run) for state, of in asking.targets(run).items()}
    eager = on.pop("eager")
    note = f"{eager}; a kind alone: {asking.listed(eager.alone)}"
    note += "".join(f"; {state}, {found.worst} the worst: {found}" for state, found in on.items())
    problem = on and getattr(asking.compiled(), "problem", None)
    facts = eager.facts() | {"unit": "one-row forwards per token", **{state: of.facts() for state, of in on.items()}}
    return Measured(eager.ratios[eager.worst], "; ".join(filter(None, [note, problem, DRAWN])), facts)


@dataclass(frozen=True)
class Held:
    """Adaptive against each kind's best fixed length, in the modelled time of one target.

    c: a guess, with all that DraftModel does around its forward, over a one-row forward; v: the target's width curve.
    ratios: of one schedule that goes through all kinds in turn; alone: of one that sees no other kind; best: the
    fixed length.
    """

    c: float
    v: dict[int, float]
    best: dict[str, int]
    ratios: dict[str, Ratio]
    alone: dict[str, float]

    @property
    def worst(self) -> str:
        return min(self.ratios, key=lambda kind: self.ratios[kind].value)

    def facts(self) -> dict:
        value = {kind: ratio.value for kind, ratio in self.ratios.items()}
        return {"by_category": value, "alone": self.alone, "best_fixed": self.best, "c": self.c, "width_costs": self.v}

    def __str__(self) -> str:
        lengths = ", ".join(f"{kind} {gamma}" for kind, gamma in self.best.items())
        return (
            f"{asking.listed(self.facts()['by_category'])}; best fixed: {lengths}; a guess takes {self.c:.3f} forwards"
        )


def held(kinds: dict[str, list], target, run: Run) -> Held:
    """kinds: for each kind its texts' right and wrong guesses; c and v are measured on this target."""
    c = cost_of_draft(5 * run.repeats, target)[1].value
    costs = asking.costs_of(target, WIDTHS, 5 * run.repeats, cached=200)
    v = cache(width_cost(costs))
    best, ratios, alone = {}, {}, {}
    together = spent_in_turn(kinds, Adaptive(c, v, most=MOST), c, v)
    for kind, right in kinds.items():
        fixed = {gamma: spent(right, Constant(gamma), c, v) for gamma in range(1, MOST + 1)}
        fixed[0] = [(len(text), float(len(text))) for text in right]  # plain decoding: one token per one-row forward
        best[kind] = max(fixed, key=lambda gamma: sum(n for n, _ in fixed[gamma]) / sum(t for _, t in fixed[gamma]))
        ratios[kind] = rate_ratio(fixed[best[kind]], together[kind])
        alone[kind] = rate_ratio(fixed[best[kind]], spent(right, Adaptive(c, v, most=MOST), c, v)).value
    return Held(c, costs, best, ratios, alone)


def spent(right: list[list[bool]], length: DraftLength, c: float, v) -> list[tuple[int, float]]:
    """For each text (tokens, modelled time), one schedule going through all of them."""
    return [(len(text), predicted_cost(replay_draft(text, length), v, c)) for text in right]


def spent_in_turn(kinds: dict[str, list], length: DraftLength, c: float, v) -> dict[str, list[tuple[int, float]]]:
    """As `spent`, by kind, with a text of each kind in turn."""
    found = {kind: [] for kind in kinds}
    for row in zip_longest(*kinds.values()):
        for kind, text in zip(kinds, row, strict=True):
            found[kind] += spent([text], length, c, v) if text else []
    return found
