"""Claims of lessons 07 and 08: prompt lookup and lookahead on our own questions, greedy, eager bf16."""

from collections.abc import Callable, Sequence
from functools import partial

import generation
import torch
from by_question import Made, compression, each, first_of, in_turn, speed, tokens_per_forward
from registry import Measured, Run, claim

from lessons_lib import Lookahead, PromptLookup, generate
from lessons_lib.data import Question, questions
from lessons_lib.decoding.probing import repeatable_step
from lessons_lib.measure.hardware import width_costs, width_curve

TOKENS = 128  # of every answer: those that end earlier by themselves do not count, longer ones are cut
GROUNDED = ("summarization", "qa", "code")  # the prompt holds a passage or a program to work on
EAGER = "greedy on the eager bf16 DecoderTarget, 128 tokens each"
LOOKUP = {"num_tokens": 10, "max_ngram": 3, "rule": "recent", "min_hit_rate": 0.35}  # the defaults, spelled out
LOOKED_UP = "PromptLookup with " + ", ".join(f"{name} {value}" for name, value in LOOKUP.items())
SAME = {"num_tokens": 10, "max_ngram": 2, "rule": "transformers", "min_hit_rate": 0.0}  # as transformers does it
WINDOW = {"W": 5, "N": 4, "G": 5}
WIDTHS = (1, 8, 16, 31)  # the widest: anchor, window and guesses of a lookahead step


def model():
    return generation.model("bf16")


def ours(target, ids: list[int], proposer=None) -> Made:
    out = generate(target, ids, proposer, max_new_tokens=TOKENS, min_new_tokens=TOKENS)
    return out.ids, out.trace


def theirs(ids: list[int]) -> Made:
    """transformers' own prompt lookup, which keeps no trace."""
    prompt = torch.tensor([ids], device=model().network.device)
    options = {"prompt_lookup_num_tokens": SAME["num_tokens"], "max_matching_ngram_size": SAME["max_ngram"]}
    options |= {"max_new_tokens": TOKENS, "min_new_tokens": TOKENS, "attention_mask": torch.ones_like(prompt)}
    return model().network.generate(prompt, do_sample=False, **options)[0, len(ids) :].tolist(), []


def asked(name: str, run: Run, categories: Sequence[str], count: int, methods: Callable, settings: dict) -> list[dict]:
    """Rows of the first `count` questions of each category, {"short": tokens} where the answer is short.

    methods: (target, ids) -> {name: call}, the one to compare with first.
    """
    target = model().target()
    chosen = first_of(questions(), categories, 2 if run.quick else count)

    def measure(question: Question) -> dict:
        ids = model().tokenizer.apply_chat_template(question.messages, add_generation_prompt=True, return_dict=False)
        natural = generate(target, ids, max_new_tokens=TOKENS)  # and a warm-up
        if natural.finish != "length":
            return {"question_id": question.question_id, "category": question.category, "short": len(natural.ids)}
        return in_turn(target, question, list(ids), methods(target, list(ids)))

    for warm_up in methods(target, list(range(10, 42))).values():
        warm_up()
    return each(name, chosen, measure, settings | {"tokens": TOKENS})


def measured(
    rows: list[dict], ratio: Callable, slow: str, fast: str, settings: dict, note: str = "", **facts
) -> Measured:
    """The ratio over the questions with long answers, and what is said and kept beside it."""
    counted = long_enough(rows)
    kinds = {kind: [row for row in counted if row["category"] == kind] for kind in [row["category"] for row in counted]}
    tau = {kind: tokens_per_forward(of, fast) for kind, of in kinds.items()}
    parted = sum(not row["equal"] for row in counted)
    shortfall = max(row[name]["shortfall"] for row in counted for name in (slow, fast))
    said = [
        note,
        "tokens per forward: " + listed(tau),
        f"{parted} of {len(counted)} texts part, shortfall at most {shortfall:.2g} logits",
    ]
    facts |= {
        "settings": settings, "tokens_per_forward": tau, "parted": parted, "largest_shortfall": shortfall,
        "by_category": {kind: ratio(of, slow, fast).value for kind, of in kinds.items()}, "questions": rows,
    }  # fmt: skip
    return Measured(ratio(counted, slow, fast), "; ".join(filter(None, said)), facts)


def long_enough(rows: list[dict]) -> list[dict]:
    return [row for row in rows if "short" not in row]


def listed(values: dict) -> str:
    return ", ".join(f"{name} {value:.2f}" for name, value in values.items())


def with_lookup(name: str, run: Run, categories: Sequence[str], count: int) -> Measured:
    """Plain decoding and prompt lookup by its defaults in turn."""

    def methods(target, ids):
        return {"plain": partial(ours, target, ids), "lookup": partial(ours, target, ids, PromptLookup(**LOOKUP))}

    rows = asked(name, run, categories, count, methods, LOOKUP)
    return measured(rows, speed, "plain", "lookup", LOOKUP)


@claim("prompt-lookup/grounded/vs-plain", ">= 2.0", f"plain: {EAGER}; {LOOKED_UP}")
def grounded(run: Run) -> Measured:
    return with_lookup("prompt-lookup/grounded/vs-plain", run, GROUNDED, 8)


@claim("prompt-lookup/free/vs-plain", ">= 0.95", f"plain: {EAGER}; {LOOKED_UP}")
def free(run: Run) -> Measured:
    return with_lookup("prompt-lookup/free/vs-plain", run, ("writing",), 10)


@claim(
    "prompt-lookup/vs-transformers", ">= 1.2",
    "transformers generate(prompt_lookup_num_tokens=10, max_matching_ngram_size=2), bf16, eager; ours: the same rule "
    "and settings on the DecoderTarget",
)  # fmt: skip
def vs_transformers(run: Run) -> Measured:
    network = model().target(kind="transformers")

    def methods(target, ids):
        same = PromptLookup(**SAME)
        both = {"ours": partial(ours, target, ids, same), "loop": partial(ours, network, ids, same)}
        return {"theirs": partial(theirs, ids)} | both

    rows = asked("prompt-lookup/vs-transformers", run, GROUNDED, 4, methods, SAME)
    loop = speed(long_enough(rows), "theirs", "loop")
    note = f"our loop on TransformersTarget: {loop.value:.2f}"
    return measured(rows, speed, "theirs", "ours", SAME, note, loop=[loop.value, loop.low, loop.high])


@claim("lookahead/code-lists/compression", ">= 1.3", f"plain decoding (1 token a forward); {EAGER}, counted")
def code_lists(run: Run) -> Measured:
    def methods(target, ids):
        return {"plain": partial(ours, target, ids), "lookahead": partial(ours, target, ids, Lookahead(**WINDOW))}

    rows = asked("lookahead/code-lists/compression", run, ("code", "lists"), 5, methods, WINDOW)
    wall = speed(long_enough(rows), "plain", "lookahead")
    target, prompt = model().target(), [10 + i % 50 for i in range(300)]
    steps = {w: repeatable_step(target, prompt, w) for w in WIDTHS}
    v = width_costs(width_curve(lambda w: steps[w](), WIDTHS, repeats=run.repeats))
    sizes = ", ".join(f"{letter}={value}" for letter, value in WINDOW.items())
    note = f"{sizes}; speed over plain {wall.value:.2f}; cost of w rows: {listed(v)}"
    facts = {"speed": [wall.value, wall.low, wall.high], "width_costs": v, "unit": "forwards per token"}
    return measured(rows, compression, "plain", "lookahead", WINDOW, note, **facts)
