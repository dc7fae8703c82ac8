"""Claims of lesson 06: smol-draft drafts for smollm2-135m, greedy.

Some are timed. Others are counted: a greedy text does not depend on the draft, so one pass of the draft over held-out
texts determines the result for every draft length.
"""

from collections.abc import Callable, Sequence
from functools import cache, partial
from itertools import zip_longest
from statistics import fmean

from bench import common, questions
from bench.common import DTYPE, Measured, Run, claim, costs_of, fingerprint, mean_rate, prompt_of
from bench.questions import EAGER, TAUGHT, asked, measured, ours, speed, theirs, with_and_without
from lessons_lib import DraftModel, load
from lessons_lib.decoding.draft_tree import DraftTree
from lessons_lib.decoding.peers import assist
from lessons_lib.decoding.prediction import replay_draft
from lessons_lib.decoding.probing import repeatable_step
from lessons_lib.decoding.proposers.draft_length import Adaptive, Constant, DraftLength
from lessons_lib.measure.clock import Ratio, Samples, in_turn, rate_ratio
from lessons_lib.measure.cost import StepCost, width_cost
from lessons_lib.models import draft_format
from lessons_lib.progress import bar
from lessons_lib.training import evaluate, prompts

GAMMA = 4  # tokens drafted per step, wherever the length is fixed
KINDS = ("chat", "summarization", "qa", "code", "math", "writing", "lists")
CACHED = 200  # cached tokens when one forward pass is timed
HELD_OUT_KINDS = prompts.CATEGORIES
MOST = 16  # longest draft length
HELD_OUT = "held out from training, of the kinds that smol-draft was trained on"
RESAMPLED = "interval: from resampling the texts of each kind"
WIDTHS = (1, 2, 3, 4, 5, 6, 8, 11, 12, 17)  # the compiled target pads up to 11 tokens, and runs wider passes eagerly


@cache
def draft():
    """smol-draft on the CPU in DTYPE."""
    return load("smol-draft", device="cpu", dtype=DTYPE)


@cache
def settings() -> dict:
    """What was measured, for the raw results."""
    return {"draft": "smol-draft", "weights": fingerprint(draft().network), "gamma": GAMMA}


@cache
def drafting():
    """The draft in its fastest form for DraftModel: readable decoder, eager, W8A16 in bf16."""
    return draft().target(weights=draft_format(draft()))


@cache  # the tokenizers are compared once, not for every text
def drafter(target) -> DraftModel:
    """The proposer for all texts of this target."""
    return DraftModel(drafting(), GAMMA)


def assistant():
    """The same draft for transformers, configured to draft GAMMA tokens in every step."""
    assist(draft().network, GAMMA)
    return draft().network


def chain_step(target, prompt: Sequence[int], draft=None) -> Callable[[], None]:
    """A function that drafts GAMMA tokens after the prompt, including everything around the forward passes.

    draft: a target that runs the draft (None: `drafting`).
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
    """(c, c with all of DraftModel's overhead): seconds per draft token over those of a one-token target pass.

    GAMMA tokens are drafted in a row, as between two target passes, which evict the draft from the CPU's caches.
    """
    prompt = prompt_of(CACHED)
    one, draft_pass = repeatable_step(target, prompt), repeatable_step(drafting(), prompt)
    calls = {"forward": lambda: [draft_pass() for _ in range(GAMMA)], "one": one, "chain": chain_step(target, prompt)}
    found = in_turn(calls, repeats=repeats)
    each = [Samples(tuple(time / GAMMA for time in found[name].times)) for name in ("forward", "chain")]
    return Ratio.of(each[0], found["one"]), Ratio.of(each[1], found["one"])


@claim(
    "draft/cost", "<= 0.10",
    f"a one-token forward pass of the eager {DTYPE} DecoderTarget; a draft token: one pass of smol-draft's eager "
    f"{DTYPE} decoder, W8A16 where that is bf16; both after {CACHED} cached tokens",
    says="Drafting one token takes {percent} of the time of a one-token forward pass of the target",
)  # fmt: skip
def cost(run: Run) -> Measured:
    forward, whole = cost_of_draft(5 * run.repeats, common.eager())
    note = f"{whole.value:.3f} with picking the token and all other work of DraftModel"
    return Measured(forward, note, {"whole": [whole.value, whole.low, whole.high], "settings": settings()})


@claim(
    "assisted/mixed/vs-plain", ">= 1.25", f"plain: {EAGER}; smol-draft drafts {GAMMA} tokens per step", asks=TAUGHT,
    says="A draft model makes decoding {times} as fast as plain decoding, over seven kinds of questions",
)  # fmt: skip
def mixed(run: Run) -> Measured:
    methods = lambda ids: with_and_without(run, ids, "assisted", drafter)  # noqa: E731
    rows = asked(run, KINDS, 4, methods)
    on = {state.strip() or "eager": of for state, of in questions.targets(run).items()}
    v = {state: costs_of(of, (1, GAMMA + 1), run.repeats) for state, of in on.items()}
    expensive = ", ".join(f"{state} {costs[GAMMA + 1]:.2f}" for state, costs in v.items())
    note = f"a pass over {GAMMA + 1} tokens costs, in one-token passes: {expensive}"
    drafting = GAMMA * cost_of_draft(run.repeats, common.eager())[1].value
    overhead = lambda fed: width_cost(v["eager"])(fed) + drafting  # noqa: E731
    return measured(rows, speed, "plain", "assisted", note, overhead, width_costs=v, settings=settings())


@claim(
    "assisted/vs-transformers", ">= 1.2",
    f"transformers generate(assistant_model=), {GAMMA} draft tokens per step, constant, no confidence threshold, "
    f"{DTYPE}, eager; ours: the same models and settings on DecoderTargets, the draft in W8A16", asks=TAUGHT,
    says="Our assisted decoding is {times} as fast as transformers' own with the same draft model",
)  # fmt: skip
def vs_transformers(run: Run) -> Measured:
    network, by_network = (
        common.model().target(kind="transformers"),
        DraftModel(draft().target(kind="transformers"), GAMMA),
    )

    def methods(ids):
        both = {f"ours{state}": partial(ours, of, ids, drafter(of)) for state, of in questions.targets(run).items()}
        both |= {"loop": partial(ours, network, ids, by_network)}
        return {"theirs": partial(theirs, ids, draft=assistant())} | both | questions.plain_beside(run, ids)

    return questions.over_transformers(asked(run, KINDS, 3, methods), settings())


@cache
def texts(run: Run) -> dict[str, list[dict]]:
    """Greedy answers of up to 128 tokens by category, with the draft's hits.

    right: for every token after the first, whether the draft predicted it.
    """
    chosen = questions.chosen(run, prompts.measured(), HELD_OUT_KINDS, 2 if run.quick else prompts.PER_KIND)
    found = {kind: [] for kind in questions.categories_of(chosen)}
    for question in bar(chosen, desc="held-out questions", unit="question"):
        for row, ids, out in questions.conversation(common.eager(), question):
            if right := evaluate.right_in_steps(drafting(), ids, out.ids):
                found[question.category].append(row | {"right": right})
    return found


@claim(
    "draft/tokens-per-forward", ">= 1.9",
    f"plain decoding (1 token per pass); mean of {', '.join(HELD_OUT_KINDS)}; greedy, up to 128 tokens each, {DTYPE}, "
    f"{GAMMA} draft tokens per step, counted by replay; smol-draft's design was chosen on these "
    "questions", asks=HELD_OUT,
    says="With a draft model, a forward pass of the target gives {number} tokens on held-out questions",
)  # fmt: skip
def tokens_per_pass(run: Run) -> Measured:
    found = {kind: [row["right"] for row in rows] for kind, rows in texts(run).items()}
    counts = [[(len(text), len(replay_draft(text, Constant(GAMMA)))) for text in right] for right in found.values()]
    tau = {kind: evaluate.tokens_per_pass(right, GAMMA) for kind, right in found.items()}
    by_gamma = {
        gamma: fmean(evaluate.tokens_per_pass(right, gamma) for right in found.values()) for gamma in range(1, MOST + 1)
    }
    share = {kind: fmean(hit for text in right for hit in text) for kind, right in found.items()}
    note = f"tokens per pass: {common.listed(tau)}; {sum(map(len, found.values()))} texts, counted once; {RESAMPLED}"
    facts = {"tokens_per_pass": tau, "right": share, "by_gamma": by_gamma, "unit": "passes per token"}
    rows = [row for of in texts(run).values() for row in of]
    stored = [row | {"right": "".join(str(int(hit)) for hit in row["right"])} for row in rows]  # right 1, wrong 0
    return Measured(mean_rate(counts), note, facts | {"gamma": GAMMA, "texts": stored})


@claim(
    "adaptive/vs-best-fixed", ">= 0.97",
    f"the best fixed draft length, 0 to {MOST}, of each kind of text; ours: one Adaptive over all kinds in turn; time "
    f"modelled from recorded draft tokens and the width curve, eager {DTYPE}; value: the worst kind", asks=HELD_OUT,
    says="Choosing the draft length while decoding is {times} as fast as the best fixed length of a kind of text",
)  # fmt: skip
def adaptive(run: Run) -> Measured:
    kinds = {kind: [row["right"] for row in rows] for kind, rows in texts(run).items()}
    on = {state.strip() or "eager": held(kinds, of, run) for state, of in questions.targets(run).items()}
    ratios, eager = on.pop("eager")
    note = f"{described(eager)}; each kind alone: {common.listed(eager['alone'])}"
    for state, (_, facts) in on.items():
        worst = min(facts["by_category"], key=facts["by_category"].get)
        note += f"; {state}, worst kind {worst}: {described(facts)}"
    problem = on and getattr(questions.compiled(), "problem", None)
    facts = eager | {"unit": "one-token passes per token", **{state: facts for state, (_, facts) in on.items()}}
    worst = min(ratios, key=lambda ratio: ratio.value)
    return Measured(worst, "; ".join(filter(None, [note, problem, RESAMPLED])), facts)


def held(kinds: dict[str, list], target, run: Run) -> tuple[list[Ratio], dict]:
    """Adaptive draft length against the best fixed length of each kind, in the modelled time of one target.

    kinds: for each kind, the right and wrong draft tokens of its texts. Returns a ratio for each kind, for one schedule
    that goes through all kinds in turn, and the facts: alone, the ratio for a schedule that sees one kind only;
    best_fixed, the fixed length; c, cost of a draft token, all of DraftModel's overhead included, over a one-token pass
    of this target, and its width curve, both measured.
    """
    c = cost_of_draft(5 * run.repeats, target)[1].value
    costs = common.costs_of(target, WIDTHS, 5 * run.repeats, cached=200)
    v = cache(width_cost(costs))
    best, ratios, alone = {}, {}, {}
    together = spent_in_turn(kinds, Adaptive(c, v, most=MOST), c, v)
    for kind, right in kinds.items():
        fixed = {gamma: spent(right, Constant(gamma), c, v) for gamma in range(1, MOST + 1)}
        fixed[0] = [(len(text), float(len(text))) for text in right]  # plain decoding: one token per one-token pass
        best[kind] = max(fixed, key=lambda gamma: sum(n for n, _ in fixed[gamma]) / sum(t for _, t in fixed[gamma]))
        ratios[kind] = rate_ratio(fixed[best[kind]], together[kind])
        alone[kind] = rate_ratio(fixed[best[kind]], spent(right, Adaptive(c, v, most=MOST), c, v)).value
    by_category = {kind: ratio.value for kind, ratio in ratios.items()}
    facts = {"by_category": by_category, "alone": alone, "best_fixed": best, "c": c, "width_costs": costs}
    return list(ratios.values()), facts


def described(facts: dict) -> str:
    """The facts of `held` for a claim's note."""
    lengths = ", ".join(f"{kind} {gamma}" for kind, gamma in facts["best_fixed"].items())
    ratios = common.listed(facts["by_category"])
    return f"{ratios}; best fixed length: {lengths}; a draft token costs {facts['c']:.3f} one-token passes"


def spent(right: list[list[bool]], length: DraftLength, c: float, v) -> list[tuple[int, float]]:
    """(tokens, modelled time) of each text, with one schedule going through all of them."""
    return [(len(text), StepCost(v=v, draft=c).steps(replay_draft(text, length))) for text in right]


def spent_in_turn(kinds: dict[str, list], length: DraftLength, c: float, v) -> dict[str, list[tuple[int, float]]]:
    """Like `spent`, by kind, with a text of each kind in turn."""
    found = {kind: [] for kind in kinds}
    for row in zip_longest(*kinds.values()):
        for kind, text in zip(kinds, row, strict=True):
            found[kind] += spent([text], length, c, v) if text else []
    return found
