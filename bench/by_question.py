"""Measuring question by question: methods in turn on each, kept as it goes so that a killed run goes on, and sums.

Over several questions a speed is the sum of tokens over the sum of seconds: long answers weigh more than short ones.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from time import perf_counter

import numpy as np

from lessons_lib.data import Question
from lessons_lib.decoding.generate import Step, after_prefill
from lessons_lib.decoding.probing import shortfall
from lessons_lib.measure.clock import RESAMPLES, Ratio, Samples, no_gc
from lessons_lib.progress import bar, say

KEPT = Path(__file__).parent.parent / "build" / "bench-questions"
Made = tuple[Sequence[int], Sequence[Step]]  # new ids, and the trace where it is ours


def first_of(questions: Sequence[Question], categories: Sequence[str], count: int) -> list[Question]:
    """The first `count` questions of each category, as they stand in the file."""
    of = {category: [q for q in questions if q.category == category][:count] for category in categories}
    return [question for chosen in of.values() for question in chosen]


def each(
    claim: str, questions: Sequence[Question], measure: Callable[[Question], list[dict]], settings: dict
) -> list[dict]:
    """All rows of measure(question), a turn each, for every question. They are on disk as soon as they are there,
    until all are: a run that was killed goes on behind them if it asks for the same questions with the same settings.
    """
    path = KEPT / f"{claim.replace('/', '-')}.json"
    wanted = json.loads(json.dumps([[asdict(question) for question in questions], settings]))
    rows = kept(path, wanted)
    for question in bar(questions[len(rows) :], desc=claim, unit="question"):
        rows.append(measure(question))
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")  # beside it, so that whoever is killed while writing loses one question
        part.write_text(json.dumps({"wanted": wanted, "rows": rows}))
        part.replace(path)
    path.unlink(missing_ok=True)
    return [row for of in rows for row in of]


def kept(path: Path, wanted: list) -> list[list[dict]]:
    """Each question's rows from an interrupted run of the same measurement."""
    try:
        before = json.loads(path.read_text())
    except (OSError, ValueError):  # there is none, or the run was killed while it wrote
        return []
    if before["wanted"] != wanted:
        return []
    say(f"going on with {path.stem}: {len(before['rows'])} questions are measured")
    return before["rows"]


def plain_of(name: str) -> str:
    """Plain decoding on the target, and in the state, of the method of this name: "plain compiled" of "lookup
    compiled"; among lesson 11's rungs, "int8" of "int8 + draft"."""
    target, guessed, _ = name.partition(" + ")
    return target if guessed else "plain compiled" if name.endswith(" compiled") else "plain"


def each_method(
    target,
    ids: list[int],
    methods: Mapping[str, Callable[[], Made]],
    backwards: bool = False,
    like: Callable[[str], str | None] = plain_of,
    texts: Mapping[str, Sequence[int]] | None = None,
) -> dict:
    """Every method on one prompt, the last one first if backwards -> what each took and made, and how they differ.

    equal: whether the text is that of the method that `like` names, plain decoding on the same target in the same
    state; None for that one itself, and where it is neither among the methods nor in `texts`, which were written
    before. shortfall: by how many logits a token of the text falls short of the target's favourite at most, both from
    one forward over the whole text: rounding, unless it is large. useful: steps that commit more than one token.
    prefill: how many of the seconds went by before the first token, 0 without a trace.
    """
    seconds, made = {}, {}
    with no_gc():
        for name in list(methods)[:: -1 if backwards else 1]:
            since = perf_counter()
            made[name] = methods[name]()
            seconds[name] = perf_counter() - since
    short = cache(lambda text: float(shortfall(target, ids, text, target.eos).max()))  # most texts are the same
    written = dict(texts or {}) | {name: new for name, (new, _) in made.items()}
    row = {name: counts(new, trace) for name, (new, trace) in made.items()}
    for name, (new, _) in made.items():
        plain = like(name)
        same = list(new) == list(written[plain]) if plain != name and plain in written else None
        row[name] |= {"seconds": seconds[name], "equal": same, "shortfall": short(tuple(new))}
    return row


def counts(new: Sequence[int], trace: Sequence[Step]) -> dict:
    """What is counted of a text, and how long its prefill took, as `each_method` has it."""
    steps = after_prefill(trace)
    return {
        "tokens": len(new), "forwards": len(trace), "forwarded": sum(step.forwarded for step in steps),
        "useful": sum(step.committed > 1 for step in steps),
        "prefill": sum(step.t_total for step in trace if step.is_prefill),
    }  # fmt: skip


def speed(rows: Sequence[dict], slow: str, fast: str) -> Ratio:
    """Tokens per second of method `fast` over those of `slow`."""
    taken = [[(row[name]["tokens"], row[name]["seconds"]) for row in rows] for name in (slow, fast)]
    return rate_ratio(*taken)


def behind_prompt(rows: Sequence[dict], slow: str, fast: str) -> float:
    """The same without the prefill and its token, which `predicted_speed` leaves out, too."""
    taken = [[(row[name]["tokens"] - 1, row[name]["seconds"] - row[name]["prefill"]) for row in rows]
             for name in (slow, fast)]  # fmt: skip
    return rate_ratio(*taken).value


def compression(rows: Sequence[dict], slow: str, fast: str) -> Ratio:
    """Tokens per forward, prefill included, of method `fast` over those of `slow`; plain decoding has exactly 1."""
    return rate_ratio(*[[(row[name]["tokens"], row[name]["forwards"]) for row in rows] for name in (slow, fast)])


def tokens_per_forward(rows: Sequence[dict], name: str) -> float:
    """tau of all rows together."""
    tokens, forwards = zip(*in_steps(rows, name), strict=True)
    return sum(tokens) / sum(forwards)


def in_steps(rows: Sequence[dict], name: str) -> list[tuple[int, int]]:
    """(tokens, forwards) of each row, prefill and its token left out."""
    return [(row[name]["tokens"] - 1, row[name]["forwards"] - 1) for row in rows]


def rows_fed(rows: Sequence[dict], name: str) -> float:
    """Rows of a step's forward on average, prefill left out."""
    return sum(row[name]["forwarded"] for row in rows) / sum(row[name]["forwards"] - 1 for row in rows)


def predicted_speed(rows: Sequence[dict], name: str, overhead: Callable[[float], float]) -> float:
    """The speed over plain decoding, prefill left out, of steps that take overhead(rows fed) plain steps each."""
    return tokens_per_forward(rows, name) / overhead(rows_fed(rows, name))


def rate_ratio(a: Sequence[tuple], b: Sequence[tuple]) -> Ratio:
    """a, b: for each question (tokens, cost) -> sum of tokens over sum of costs, b's over a's.

    The 95 % interval comes from drawing the questions again, so it says how much the choice of questions matters.
    The samples are each question's cost per token. ValueError without questions.
    """
    if not len(a) or len(a) != len(b):
        raise ValueError(f"both methods need the same questions, at least one, not {len(a)} and {len(b)}")
    both = np.array([a, b], dtype=float)  # (2, questions, 2)

    def ratio(drawn):
        tokens, cost = np.moveaxis(both[:, drawn].sum(-2), -1, 0)
        slow, fast = tokens / cost
        return fast / slow

    low, high = np.percentile(ratio(drawings(len(a))), [2.5, 97.5])
    samples = [Samples(tuple((cost / tokens).tolist())) for tokens, cost in np.moveaxis(both, -1, 1)]
    return Ratio(float(ratio(np.arange(len(a)))), float(low), float(high), *samples)


def mean_rate(kinds: Sequence[Sequence[tuple]]) -> Ratio:
    """kinds: for each kind of text its texts' (tokens, forwards) -> the mean over kinds of tokens per forward.

    Every kind counts the same, however many texts it has. The interval is that of texts drawn again within their
    kinds; the samples are forwards per token, first plain decoding's. ValueError for a kind without texts.
    """
    if not kinds or not all(map(len, kinds)):
        raise ValueError("every kind needs a text to count")

    def mean(drawn):
        sums = [np.array(texts, dtype=float)[those].sum(-2) for texts, those in zip(kinds, drawn, strict=True)]
        return np.mean([found[..., 0] / found[..., 1] for found in sums], axis=0)

    again = mean([drawings(len(texts), kind) for kind, texts in enumerate(kinds)])
    low, high = np.percentile(again, [2.5, 97.5])
    taken = [forwards / tokens for texts in kinds for tokens, forwards in texts]
    value = float(mean([np.arange(len(texts)) for texts in kinds]))
    return Ratio(value, float(low), float(high), Samples((1.0,) * len(taken)), Samples(tuple(taken)))


def drawings(count: int, seed: int = 0) -> np.ndarray:
    """(RESAMPLES, count) numbers below `count`: what a bootstrap draws again."""
    return np.random.default_rng(seed).integers(count, size=(RESAMPLES, count))
