"""Claims of lesson 07: prompt lookup on our own questions, greedy."""

from collections.abc import Sequence
from functools import partial

from bench import common, questions
from bench.common import DTYPE, Measured, Run, claim, costs_of
from bench.questions import EAGER, OWN, asked, measured, ours, speed, theirs, with_and_without
from lessons_lib import PromptLookup
from lessons_lib.measure.cost import width_cost

GROUNDED = ("summarization", "qa", "code")  # the prompt contains a passage or a program to work on
LOOKUP = {"num_tokens": 10, "max_ngram": 3, "rule": "recent", "min_hit_rate": 0.35}  # the defaults, explicitly
LOOKED_UP = "PromptLookup with " + ", ".join(f"{name} {value}" for name, value in LOOKUP.items())
SAME = {"num_tokens": 10, "max_ngram": 2, "rule": "transformers", "min_hit_rate": 0.0}  # as in transformers
THEIRS = {"prompt_lookup_num_tokens": SAME["num_tokens"], "max_matching_ngram_size": SAME["max_ngram"]}


def with_lookup(run: Run, categories: Sequence[str], count: int) -> Measured:
    """Plain decoding and prompt lookup with its defaults, in alternation."""
    methods = lambda ids: with_and_without(run, ids, "lookup", lambda of: PromptLookup(**LOOKUP))  # noqa: E731
    rows = asked(run, categories, count, methods)
    v = costs_of(common.eager(), (1, 6, 11), run.repeats)
    return measured(rows, speed, "plain", "lookup", overhead=width_cost(v), width_costs=v, settings=LOOKUP)


@claim(
    "prompt-lookup/grounded/vs-plain", ">= 2.0", f"plain: {EAGER}; {LOOKED_UP}", asks=OWN,
    says="Prompt lookup makes answers from a given text {times} as fast",
)  # fmt: skip
def grounded(run: Run) -> Measured:
    return with_lookup(run, GROUNDED, 8)


@claim(
    "prompt-lookup/free/vs-plain", ">= 0.95", f"plain: {EAGER}; {LOOKED_UP}", asks=OWN,
    says="Prompt lookup makes free writing {times} as fast",
)  # fmt: skip
def free(run: Run) -> Measured:
    return with_lookup(run, ("writing",), 10)


@claim(
    "prompt-lookup/vs-transformers", ">= 1.2",
    f"transformers generate(prompt_lookup_num_tokens=10, max_matching_ngram_size=2), {DTYPE}, eager; ours: the "
    "same rule and settings on the DecoderTarget", asks=OWN,
    says="Our prompt lookup is {times} as fast as transformers' own with the same settings",
)  # fmt: skip
def vs_transformers(run: Run) -> Measured:
    network = common.model().target(kind="transformers")

    def methods(ids):
        on = {f"ours{state}": of for state, of in questions.targets(run).items()} | {"loop": network}
        both = {name: partial(ours, of, ids, PromptLookup(**SAME)) for name, of in on.items()}
        return {"theirs": partial(theirs, ids, **THEIRS)} | both | questions.plain_beside(run, ids)

    return questions.over_transformers(asked(run, GROUNDED, 4, methods), SAME)
