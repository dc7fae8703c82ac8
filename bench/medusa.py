"""Claims of lesson 09: smol-medusa guesses for smollm2-135m, greedy. All three come of one measurement."""

from functools import cache, partial

from bench import asking, fitting
from bench.asking import (
    EAGER,
    TAUGHT,
    answered,
    asked,
    by_category,
    listed,
    long_enough,
    measured,
    ours,
    with_and_without,
)
from bench.assisted import KINDS, fingerprint
from bench.by_question import in_steps, mean_rate, rate_ratio, rows_fed, speed, tokens_per_forward
from bench.fitting import HEADS, Fitted, fitted
from bench.registry import Measured, Run, claim, off_by
from lessons_lib import Medusa
from lessons_lib.decoding.generate import Output
from lessons_lib.decoding.proposers.medusa import best_tree, expected_tokens
from lessons_lib.training import Text, favourites, read_texts, trace_of

PER_KIND = 3  # questions
SIZES = (16, 63)  # nodes of larger trees, counted on the same answers


def trees(run: Run) -> dict[str, Fitted]:
    """Of every target, by its state."""
    fitting.heads()  # before anything is compiled: there may be none
    return {state.strip() or "eager": fitted(of, run.repeats) for state, of in asking.targets(run).items()}


def nodes(of: Fitted) -> int:
    """Guesses of a step: the nodes of its tree."""
    return len(of.tree.choices)


def settings(chosen: dict[str, Fitted]) -> dict:
    """What a measurement depends on: other heads of the same name need another one, and so do other trees."""
    sizes = {state: nodes(of) for state, of in chosen.items()}
    return {"heads": HEADS, "weights": fingerprint(fitting.heads()), "nodes": sizes}


@cache
def rows(run: Run) -> list[dict]:
    """Plain decoding and Medusa, eager and compiled, on PER_KIND questions of every kind."""
    by = lambda of: Medusa(fitting.heads(), fitted(of, run.repeats).tree)  # noqa: E731
    methods = lambda ids: with_and_without(run, ids, "medusa", by)  # noqa: E731
    return asked("medusa", run, KINDS, PER_KIND, methods, settings(trees(run)), also=by_size)


def by_size(ids: list[int], natural: Output) -> dict:
    """How many steps of the eager target the answer takes with the best tree of each of SIZES, counted by replay."""
    decoder, text = asking.eager().decoder, [*ids, *natural.ids]
    hidden = decoder.final(read_texts(decoder, [text[:-1]]))
    of, grown = Text("", text, len(ids), hidden=hidden), {n: best_tree(fitting.accuracies(), n) for n in SIZES}
    best = favourites(fitting.heads(), of, max(tree.ranks for tree in grown.values()))
    steps = [(n, len(trace_of(fitting.heads(), of, best, tree)) - 1) for n, tree in grown.items()]
    return {"steps_by_nodes": steps, "behind_first": len(natural.ids) - 1}


def in_eight_bits(run: Run) -> tuple[str, dict]:
    """What is said and kept of the same in int8, compiled, one question of every kind; a quick run goes without.

    The target in 8 bits writes texts of its own, so that it is asked apart from the others.
    """
    if run.quick:
        return "", {}
    target = fitting.eight_bits()
    of = fitted(target, run.repeats)
    by = Medusa(fitting.heads(), of.tree)
    methods = lambda ids: {"plain": partial(ours, target, ids), "medusa": partial(ours, target, ids, by)}  # noqa: E731
    found = asked("medusa/int8", run, KINDS, 1, methods, settings({"int8": of}), target)
    if not (counted := long_enough(found)):
        return "", {}
    ratio, tau = speed(counted, "plain", "medusa"), tokens_per_forward(counted, "medusa")
    said = f"int8, compiled, one question a kind: {ratio.value:.2f} over plain int8, compiled"
    said += f", {tau:.2f} tokens per forward, {nodes(of)} nodes"
    return said, {"int8": [ratio.value, ratio.low, ratio.high], "int8_v": of.v, "int8_questions": found}


@claim(
    "medusa/tokens-per-forward", ">= 2.1",
    f"plain decoding (1 token a forward); mean of {', '.join(KINDS)}; {EAGER}, counted; {HEADS}", asks=TAUGHT,
)  # fmt: skip
def tokens(run: Run) -> Measured:
    counted, eager = answered(rows(run)), fitted(asking.eager(), run.repeats)
    kinds = by_category(counted)
    counts = [in_steps(of, "medusa") for of in kinds.values()]
    tau = {kind: tokens_per_forward(of, "medusa") for kind, of in kinds.items()}
    together, expected = tokens_per_forward(counted, "medusa"), expected_tokens(eager.tree, fitting.accuracies())
    note = f"{listed(tau)}; all questions together {together:.2f}; {nodes(eager)} nodes, which promise {expected:.2f}"
    larger = {n: sum(row["behind_first"] for row in counted) / sum(dict(row["steps_by_nodes"])[n] for row in counted)
              for n in SIZES}  # fmt: skip
    note += "".join(f"; {n} nodes would make it {value:.2f}, by replay" for n, value in larger.items())
    facts = {"tokens_per_forward": tau, "together": together, "expected": expected, "choices": eager.tree.choices}
    facts |= {"by_nodes": larger}
    return Measured(mean_rate(counts), note, facts | {"settings": settings(trees(run)), "unit": "forwards per token"})


@claim(
    "medusa/vs-plain", ">= 1.35",
    f"plain: {EAGER}; {HEADS}, each target with the tree that is fastest by its own width curve", asks=TAUGHT,
)  # fmt: skip
def vs_plain(run: Run) -> Measured:
    found, chosen = rows(run), trees(run)
    eight, facts = in_eight_bits(run)
    sizes = ", ".join(f"{state} {nodes(of)} nodes" for state, of in chosen.items())
    facts |= {name: {state: getattr(of, name) for state, of in chosen.items()} for name in ("v", "heads_share")}
    note = "; ".join(filter(None, [sizes, eight]))
    return measured(found, speed, "plain", "medusa", settings(chosen), note, chosen["eager"].overhead, **facts)


@claim(
    "medusa/identity", "<= 0.10",
    "1: speedup over plain times overhead over tokens per step, prefill left out; the overhead is predicted by the "
    f"width curve and the heads' share of a step, timed apart; {EAGER}", asks=TAUGHT, unit="",
)  # fmt: skip
def identity(run: Run) -> Measured:
    """|speedup / (tokens per step / overhead) - 1|, as in Cai et al. 2024 (arXiv 2401.10774), table 1.

    Speedup and tokens per step are this run's, by its clock and by its counts, both without the prefill, which is no
    step. With this run's step times as the overhead nothing would be left to find out. It is v(w) + heads_share(w)
    instead: forwards, and all beside them, each timed alone behind another text, at the w rows that a step fed on
    average. What is left is what that misses: other lengths, commits, caches that other work emptied.
    """
    counted, eager = answered(rows(run)), fitted(asking.eager(), run.repeats)
    plain, guessed = ([row[name] for row in counted] for name in ("plain", "medusa"))
    fed = rows_fed(counted, "medusa")
    overhead, tau = eager.overhead(fed), tokens_per_forward(counted, "medusa")
    ratio = rate_ratio(steps(plain), steps(guessed, overhead))
    sped = ratio.value * tau / overhead
    note = (
        f"speedup {sped:.2f} ({speed(counted, 'plain', 'medusa').value:.2f} with the prefill), {tau:.2f} tokens per "
        f"step of {fed:.1f} rows, overhead {overhead:.2f} predicted, {tau / sped:.2f} in the run"
    )
    facts = {
        "speedup": sped,
        "tokens_per_forward": tau,
        "rows": fed,
        "overhead": overhead,
        "v": eager.v,
        "heads_share": eager.heads_share,
    }
    return Measured(off_by(ratio), note, facts | {"ratio": ratio.value, "unit": "s per plain step, predicted"})


def steps(made: list[dict], overhead: float = 1.0) -> list[tuple[float, float]]:
    """For each text its steps in units of plain ones, a token each, and their seconds, prefill left out.

    Units per second of Medusa's over plain decoding's are speedup times overhead over tokens per step.
    """
    return [(overhead * (of["forwards"] - 1), of["seconds"] - of["prefill"]) for of in made]
