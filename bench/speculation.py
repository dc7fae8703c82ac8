"""Claims of lessons 07 and 08: prompt lookup and lookahead on our own questions, greedy."""

from collections.abc import Sequence
from functools import partial

from bench import asking
from bench.asking import DTYPE, EAGER, OWN, answered, asked, costs_of, listed, measured, ours, theirs, with_and_without
from bench.by_question import compression, speed
from bench.registry import Measured, Run, claim
from lessons_lib import Lookahead, PromptLookup
from lessons_lib.measure.speculation import width_cost

GROUNDED = ("summarization", "qa", "code")  # the prompt holds a passage or a program to work on
LOOKUP = {"num_tokens": 10, "max_ngram": 3, "rule": "recent", "min_hit_rate": 0.35}  # the defaults, spelled out
LOOKED_UP = "PromptLookup with " + ", ".join(f"{name} {value}" for name, value in LOOKUP.items())
SAME = {"num_tokens": 10, "max_ngram": 2, "rule": "transformers", "min_hit_rate": 0.0}  # as transformers does it
THEIRS = {"prompt_lookup_num_tokens": SAME["num_tokens"], "max_matching_ngram_size": SAME["max_ngram"]}
WINDOW = {"W": 5, "N": 4, "G": 5}
EAGER_STEPS = (
    f"steps of more than {max(asking.COMPILED)} tokens are not compiled: its compiled speed is that of eager steps "
    "over compiled plain decoding"
)
WIDTHS = (1, 8, 16, 31)  # the widest: anchor, window and guesses of a lookahead step
PUBLISHED = 1.64  # tokens per step of lookahead on Spec-Bench: Vicuna-7B, W=7, N=5, G=7, batch 1; on two GPUs alike


def with_lookup(name: str, run: Run, categories: Sequence[str], count: int) -> Measured:
    """Plain decoding and prompt lookup by its defaults in turn."""
    methods = lambda ids: with_and_without(run, ids, "lookup", lambda of: PromptLookup(**LOOKUP))  # noqa: E731
    rows = asked(name, run, categories, count, methods, LOOKUP)
    v = costs_of(asking.eager(), (1, 6, 11), run.repeats)
    return measured(rows, speed, "plain", "lookup", LOOKUP, overhead=width_cost(v), width_costs=v)


@claim("prompt-lookup/grounded/vs-plain", ">= 2.0", f"plain: {EAGER}; {LOOKED_UP}", asks=OWN)
def grounded(run: Run) -> Measured:
    return with_lookup("prompt-lookup/grounded/vs-plain", run, GROUNDED, 8)


@claim("prompt-lookup/free/vs-plain", ">= 0.95", f"plain: {EAGER}; {LOOKED_UP}", asks=OWN)
def free(run: Run) -> Measured:
    return with_lookup("prompt-lookup/free/vs-plain", run, ("writing",), 10)


@claim(
    "prompt-lookup/vs-transformers", ">= 1.2",
    f"transformers generate(prompt_lookup_num_tokens=10, max_matching_ngram_size=2), {DTYPE}, eager; ours: the "
    "same rule and settings on the DecoderTarget", asks=OWN,
)  # fmt: skip
def vs_transformers(run: Run) -> Measured:
    network = asking.model().target(kind="transformers")

    def methods(ids):
        on = {f"ours{state}": of for state, of in asking.targets(run).items()} | {"loop": network}
        both = {name: partial(ours, of, ids, PromptLookup(**SAME)) for name, of in on.items()}
        return {"theirs": partial(theirs, ids, **THEIRS)} | both | asking.plain_beside(run, ids)

    rows = asked("prompt-lookup/vs-transformers", run, GROUNDED, 4, methods, SAME, like=asking.BESIDE.get)
    return asking.over_transformers(rows, SAME)


@claim(
    "lookahead/code-lists/compression", ">= 1.3", f"plain decoding (1 token a forward); {EAGER}, counted", asks=OWN
)  # fmt: skip
def code_lists(run: Run) -> Measured:
    methods = lambda ids: with_and_without(run, ids, "lookahead", lambda of: Lookahead(**WINDOW))  # noqa: E731
    rows = asked("lookahead/code-lists/compression", run, ("code", "lists"), 5, methods, WINDOW)
    counted, expected = answered(rows), compressed(PUBLISHED, asking.TOKENS)
    wall, (share, several) = speed(counted, "plain", "lookahead"), useful(counted, "lookahead")
    v = costs_of(asking.eager(), WIDTHS, run.repeats)
    sizes = ", ".join(f"{letter}={value}" for letter, value in WINDOW.items())
    note = (
        f"{sizes}; predicted {expected:.2f}, by {PUBLISHED} tokens a step as counted on Spec-Bench (Vicuna-7B, 7/5/7); "
        f"1/f = {share:.2f} of the steps commit E = {several:.2f} tokens, the others one: "
        f"(f - 1 + E) / f = {1 + share * (several - 1):.2f} a step; "
        f"speed over plain {wall.value:.2f}; cost of w rows: {listed(v)}; {EAGER_STEPS}"
    )
    facts = {"speed": [wall.value, wall.low, wall.high], "width_costs": v, "unit": "forwards per token"}
    facts |= {"published": PUBLISHED, "expected": expected, "useful": [share, several]}
    return measured(rows, compression, "plain", "lookahead", WINDOW, note, width_cost(v), **facts)


def compressed(tau: float, tokens: int) -> float:
    """CR of so many tokens, the first of which is the prefill's, at tau tokens a step behind it."""
    return tokens / (1 + (tokens - 1) / tau)


def useful(rows: Sequence[dict], name: str) -> tuple[float, float]:
    """(1/f, E) of Fu et al. 2024 (arXiv 2402.02057): the share of steps that commit several tokens, and how many these
    commit on average, 1 if there are none."""
    steps, several, tokens = (sum(row[name][what] for row in rows) for what in ("forwards", "useful", "tokens"))
    steps, tokens = steps - len(rows), tokens - len(rows)  # the prefills commit one token each
    return several / steps, (tokens - (steps - several)) / several if several else 1.0
