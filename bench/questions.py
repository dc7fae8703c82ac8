"""Measure speculation question by question: methods in alternation, summed over questions.

All methods run on the eager decoder, in bf16 where the machine has native bf16 (bars refer to that), else in fp32; the
compiled decoder is measured beside it in the same run. Every turn of a question is asked, after the conversation so far
with plain decoding's answers. A speed over several questions is the sum of tokens over the sum of seconds.

Another file's questions (Run.questions) are used by its own categories, as many of each as of one of ours, and only on
the eager target: they may be longer than the compiled one's caches, which are as long as our questions need.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from time import perf_counter

from bench import common
from bench.common import DTYPE, Measured, NotMeasured, Run, prompt_of
from lessons_lib import generate
from lessons_lib.data import Question, questions
from lessons_lib.decoding.generate import Output, StepStats, after_prefill
from lessons_lib.decoding.peers import by_transformers
from lessons_lib.decoding.probing import logit_gap, repeatable_step
from lessons_lib.decoding.targets import CompiledTarget, Target
from lessons_lib.decoding.text import encode
from lessons_lib.measure.clock import Ratio, no_gc, rate_ratio
from lessons_lib.models.decoder import Decoder
from lessons_lib.progress import bar

TOKENS = 128  # length of every answer: those that end earlier do not count, longer ones are cut
OWN = "the course's own"
TAUGHT = f"{OWN}, of the kinds that smol-draft and smol-medusa were trained on"
EAGER = f"greedy on the eager {DTYPE} DecoderTarget, 128 tokens each"
CONTEXT = 672  # slots of the compiled target's caches: enough for the longest prompt, its answer and a lookahead window
COMPILED = (1, 5, 11)  # compiled widths: plain, a chain of four, prompt lookup's ten; wider passes run eager
THEIRS = ("theirs", "theirs by default", "plain theirs", "loop")  # methods on transformers' forward passes
Made = tuple[Sequence[int], Sequence[StepStats]]  # new ids, and the stats if it is ours
SPREAD = "interval: from resampling the questions, one run each"


def plain_of(name: str) -> str:
    """The plain-decoding counterpart of a method, on the same target in the same state.

    "plain compiled" for "lookup compiled"; "natural", which was generated before, for "ours"; among lesson 11's
    configurations, "W8A8" for "W8A8 + draft".
    """
    target, drafting, _ = name.partition(" + ")
    if drafting:
        return target
    if name in THEIRS:
        return "plain theirs"
    return "natural" if name == "ours" else "plain compiled" if name.endswith(" compiled") else "plain"


@cache
def compiled() -> CompiledTarget:
    """The eager target's decoder, compiled."""
    return run_once(common.eager().decoder, COMPILED)


def run_once(decoder: Decoder, widths: Sequence[int], **options) -> CompiledTarget:
    """Compile a decoder of this vocabulary and run each of its compiled steps once; options: of CompiledTarget."""
    target = CompiledTarget(decoder, common.eager().tokenizer, common.eager().eos, CONTEXT, widths, **options)
    for width in widths:
        repeatable_step(target, prompt_of(32), width)()
    return target


def conversation(target, question: Question) -> Iterator[tuple[dict, list[int], Output]]:
    """For each turn: the first columns of its row, its prompt after the turns before, and plain decoding's answer.

    Raises NotMeasured if a prompt is too long for the model.
    """
    messages = []
    for number, turn in enumerate(question.turns, 1):
        messages.append({"role": "user", "content": turn})
        ids = encode(target, messages)
        try:
            answer = generate(target, ids, max_new_tokens=TOKENS)
        except ValueError as error:
            raise NotMeasured(f"question {question.question_id}: {error}") from error
        yield {"question_id": question.question_id, "turn": number, "category": question.category}, ids, answer
        messages.append({"role": "assistant", "content": answer.text})


def chosen(run: Run, own: Sequence[Question], categories: Sequence[str], count: int) -> list[Question]:
    """The first `count` questions of each category: `own`, or the run's file with its own categories."""
    if run.questions:
        own = questions(run.questions)
        categories = categories_of(own)
    return [q for category in categories for q in [q for q in own if q.category == category][:count]]


def categories_of(found: Sequence[Question]) -> list[str]:
    """Their categories in order of first appearance."""
    return list(dict.fromkeys(question.category for question in found))


def ours(target, ids: list[int], proposer=None) -> Made:
    """TOKENS new tokens by our greedy generate after these ids, with stats. proposer None: plain decoding."""
    out = generate(target, ids, proposer, max_new_tokens=TOKENS, min_new_tokens=TOKENS)
    return out.ids, out.stats


def theirs(ids: list[int], **options) -> Made:
    """transformers' own generate, without stats."""
    return by_transformers(common.model().network, ids, TOKENS, **options), []


def targets(run: Run) -> dict[str, Target]:
    """The targets on which methods run, by the suffix of the methods' names."""
    return {"": common.eager()} if run.questions else {"": common.eager(), " compiled": compiled()}


def with_and_without(run: Run, ids: list[int], name: str, proposer: Callable) -> dict[str, Callable[[], Made]]:
    """Plain decoding and method `name` on every target. proposer: target -> its proposer."""
    on = targets(run)
    plain = {f"plain{state}": partial(ours, of, ids) for state, of in on.items()}
    return plain | {f"{name}{state}": partial(ours, of, ids, proposer(of)) for state, of in on.items()}


def plain_beside(run: Run, ids: list[int]) -> dict[str, Callable[[], Made]]:
    """Plain decoding for `ours`, `theirs` and `loop`, so that their texts can be compared with it.

    On the eager target it is the natural answer.
    """
    state = {} if run.questions else {"plain compiled": partial(ours, compiled(), ids)}
    return {"plain theirs": partial(theirs, ids)} | state


def asked(run: Run, categories: Sequence[str], count: int, methods: Callable, texts: bool = False) -> list[dict]:
    """A row for every turn of the first `count` questions of each category; {"short": tokens} if its answer is short.

    methods: ids -> {name: call}. Their texts can be compared with the eager target's greedy text as "natural". texts:
    rows of long answers keep the ids of prompt and natural answer, too.
    """
    target, rows = common.eager(), []
    for warm_up in methods(prompt_of(32)).values():
        warm_up()
    wanted = chosen(run, questions(), categories, max(1, count // 4) if run.quick else count)
    for question in bar(wanted, desc="questions", unit="question"):
        for row, ids, natural in conversation(target, question):  # the natural answer also serves as warm-up
            if natural.finish == "length":
                backwards = question.question_id % 2 == 1
                row |= each_method(target, ids, methods(ids), backwards, {"natural": natural.ids})
                row |= {"prompt": list(ids), "new": natural.ids} if texts else {}
            else:
                row["short"] = len(natural.ids)
            rows.append(row)
    return rows


def measured(
    rows: list[dict], ratio: Callable, slow: str, fast: str, note: str = "", overhead=None, **facts
) -> Measured:
    """The ratio over the questions with long answers, with its note and facts.

    overhead: tokens per step -> cost relative to a plain step, both timed separately; with it the speed is predicted,
    too.
    """
    counted = answered(rows)
    kinds = by_category(counted)
    beside = in_compiled(kinds, counted, slow, fast)
    logit_gap = max(made["logit_gap"] for row in counted for made in row.values() if isinstance(made, dict))
    facts |= {
        **per_kind(kinds, slow, fast), "parted": differing(counted), "largest_logit_gap": logit_gap,
        "compiled": beside, "questions": rows,
    }  # fmt: skip
    if overhead:
        facts["predicted"] = predicted_speed(counted, fast, overhead)
        facts["after_prompt"] = rate_ratio(decoding(counted, slow), decoding(counted, fast)).value
    return Measured(ratio(counted, slow, fast), note_of(note, facts, len(counted)), facts)


def over_transformers(rows: list[dict], settings: dict) -> Measured:
    """`ours` over `theirs`, and beside it `loop`: our loop on transformers' forward passes. settings: a fact."""
    loop = speed(answered(rows), "theirs", "loop")
    note = f"our loop on TransformersTarget: {loop.value:.2f}"
    facts = {"loop": [loop.value, loop.low, loop.high], "settings": settings}
    return measured(rows, speed, "theirs", "ours", note, **facts)


def in_compiled(kinds: dict[str, list[dict]], rows: list[dict], slow: str, fast: str) -> dict | None:
    """Speed of `fast` compiled over `slow`, which is compiled too if it is ours; None if it was not run."""
    fast, known = f"{fast} compiled", rows[0]
    if fast not in known:
        return None
    slow = f"{slow} compiled" if f"{slow} compiled" in known else slow
    found = speed(rows, slow, fast)
    facts = {"value": found.value, "low": found.low, "high": found.high} | per_kind(kinds, slow, fast)
    return facts | {"widths": COMPILED, "problem": getattr(compiled(), "problem", None)}


def answered(rows: list[dict]) -> list[dict]:
    """The rows of answers that reach TOKENS tokens. Raises NotMeasured if there are none."""
    if not (found := [row for row in rows if "short" not in row]):
        raise NotMeasured(f"no answer reaches {TOKENS} tokens, so there is nothing to measure; ask other questions")
    return found


def by_category(rows: list[dict]) -> dict[str, list[dict]]:
    """Rows by category, in order of first appearance."""
    return {kind: [row for row in rows if row["category"] == kind] for kind in [row["category"] for row in rows]}


def each_method(
    target,
    ids: list[int],
    methods: Mapping[str, Callable[[], Made]],
    backwards: bool = False,
    texts: Mapping[str, Sequence[int]] | None = None,
) -> dict:
    """Run every method on one prompt (in reverse order if `backwards`) -> counts, seconds and comparisons for each.

    equal: whether the text equals that of the method's `plain_of`. None for plain decoding itself, and if that is
    neither among the methods nor in `texts`, which were generated before. logit_gap: the largest logit gap between the
    target's argmax and a token of the text, from one forward pass over the whole text; it is due to rounding unless it
    is large. useful: steps that commit more than one token. prefill: seconds before the first token, 0 without stats.
    """
    seconds, made = {}, {}
    with no_gc():
        for name in list(methods)[:: -1 if backwards else 1]:
            since = perf_counter()
            made[name] = methods[name]()
            seconds[name] = perf_counter() - since
    short = cache(lambda text: float(logit_gap(target, ids, text, target.eos).max()))  # most texts are the same
    written = dict(texts or {}) | {name: new for name, (new, _) in made.items()}
    row = {name: counts(new, stats) for name, (new, stats) in made.items()}
    for name, (new, _) in made.items():
        plain = plain_of(name)
        same = list(new) == list(written[plain]) if plain != name and plain in written else None
        row[name] |= {"seconds": seconds[name], "equal": same, "logit_gap": short(tuple(new))}
    return row


def counts(new: Sequence[int], stats: Sequence[StepStats]) -> dict:
    """Counts of a text and the time of its prefill, as in `each_method`."""
    steps = after_prefill(stats)
    return {
        "tokens": len(new), "forward_passes": len(stats), "input_tokens": sum(step.num_input_tokens for step in steps),
        "useful": sum(step.committed > 1 for step in steps),
        "prefill": sum(step.t_total for step in stats if step.is_prefill),
    }  # fmt: skip


def speed(rows: Sequence[dict], slow: str, fast: str) -> Ratio:
    """Tokens per second of method `fast` over those of `slow`."""
    taken = [[(row[name]["tokens"], row[name]["seconds"]) for row in rows] for name in (slow, fast)]
    return rate_ratio(*taken)


def decoding(rows: Sequence[dict], name: str) -> list[tuple[float, float]]:
    """(tokens, seconds) of each row, without the prefill and its token."""
    return [(row[name]["tokens"] - 1, row[name]["seconds"] - row[name]["prefill"]) for row in rows]


def compression(rows: Sequence[dict], slow: str, fast: str) -> Ratio:
    """Tokens per forward pass, prefill included, of method `fast` over those of `slow` (plain decoding: 1)."""
    return rate_ratio(*[[(row[name]["tokens"], row[name]["forward_passes"]) for row in rows] for name in (slow, fast)])


def tokens_per_pass(rows: Sequence[dict], name: str) -> float:
    """tau of all rows together."""
    tokens, passes = zip(*in_steps(rows, name), strict=True)
    return sum(tokens) / sum(passes)


def in_steps(rows: Sequence[dict], name: str) -> list[tuple[int, int]]:
    """(tokens, forward passes) of each row, without the prefill and its token."""
    return [(row[name]["tokens"] - 1, row[name]["forward_passes"] - 1) for row in rows]


def tokens_fed(rows: Sequence[dict], name: str) -> float:
    """Mean number of tokens in a forward pass, prefill left out."""
    return sum(row[name]["input_tokens"] for row in rows) / sum(row[name]["forward_passes"] - 1 for row in rows)


def predicted_speed(rows: Sequence[dict], name: str, overhead: Callable[[float], float]) -> float:
    """Predicted speedup over plain decoding, prefill left out.

    overhead: mean tokens per pass -> cost of a step in plain steps.
    """
    return tokens_per_pass(rows, name) / overhead(tokens_fed(rows, name))


def note_of(note: str, facts: dict, texts: int) -> str:
    """A claim's note: its own, the prediction, and speed and tokens per forward pass for each kind of text."""
    found, beside = [note], facts["compiled"]
    if "predicted" in facts:
        found.append(f"speedup without the prefill {facts['after_prompt']:.2f}, predicted {facts['predicted']:.2f}")
    found.append(f"speedup (tokens per pass): {with_tau(facts)}")
    if beside:
        found += [f"compiled {beside['value']:.2f}: {with_tau(beside)}", beside["problem"]]
    apart = ", ".join(f"{name} {count}" for name, count in facts["parted"].items())
    found.append(f"of {texts} texts, different from plain decoding on the same target: {apart}")
    found += [f"logit gap at most {facts['largest_logit_gap']:.2g}", SPREAD]
    return "; ".join(filter(None, found))


def per_kind(kinds: dict[str, list[dict]], slow: str, fast: str) -> dict[str, dict[str, float]]:
    """For each kind of text the speed of `fast` over `slow`, and its tokens per forward pass."""
    return {
        "speed_by_category": {kind: speed(of, slow, fast).value for kind, of in kinds.items()},
        "tokens_per_pass": {kind: tokens_per_pass(of, fast) for kind, of in kinds.items()},
    }


def with_tau(facts: dict) -> str:
    """Format speedup and tokens per pass of each kind, from `per_kind`."""
    taus = facts["tokens_per_pass"]
    return ", ".join(f"{kind} {value:.2f} ({taus[kind]:.2f})" for kind, value in facts["speed_by_category"].items())


def differing(rows: Sequence[dict]) -> dict[str, int]:
    """For each method, how many of its texts differ from plain decoding's on the same target and state."""
    flags = {name: [row[name]["equal"] for row in rows] for name, made in rows[0].items() if isinstance(made, dict)}
    return {name: of.count(False) for name, of in flags.items() if None not in of}
