"""What the claims of speculation share: questions, methods in turn on each of them, and what is said of the rows.

All run on the decoder, eager, in bf16 where the machine computes in it (bars hold for that) and else in fp32; the
compiled one stands beside it in the same run. Every turn of a question is asked, behind the conversation so far with
plain decoding's answers.

Another file's questions (Run.questions) are asked by its own categories, as many of each as of one of ours, and of the
eager target alone: they may be longer than the compiled one's caches, which are as long as ours need.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial

from bench import by_question, generation
from bench.by_question import Made, behind_prompt, first_of, plain_of, predicted_speed, speed
from bench.registry import DTYPE, Measured, Run
from bench.saying import parted, per_kind, said
from lessons_lib import generate
from lessons_lib.data import Question, questions
from lessons_lib.decoding.generate import Output, encode
from lessons_lib.decoding.peers import by_transformers
from lessons_lib.decoding.probing import repeatable_step, width_times
from lessons_lib.decoding.targets import CompiledTarget
from lessons_lib.decoding.targets.base import Target
from lessons_lib.measure.hardware import width_costs
from lessons_lib.models.decoder import Decoder

TOKENS = 128  # of every answer: those that end earlier by themselves do not count, longer ones are cut
OWN = "the course's own"
TAUGHT = f"{OWN}, of kinds that smol-draft and smol-medusa were trained on"
EAGER = f"greedy on the eager {DTYPE} DecoderTarget, 128 tokens each"
CONTEXT = 672  # positions of the compiled target's caches: the longest prompt, its answer and a lookahead window fit
COMPILED = (1, 5, 11)  # token counts compiled: plain, a chain of four, prompt lookup's ten; more run eager
BESIDE = {"theirs": "plain theirs", "loop": "plain theirs", "ours": "natural", "ours compiled": "plain compiled"}


def model():
    """smollm2-135m on the CPU in DTYPE."""
    return generation.model(DTYPE)


def eager():
    """Its readable decoder, nothing compiled."""
    return generation.target(DTYPE)


@cache
def compiled() -> CompiledTarget:
    """The eager target's decoder."""
    return run_once(eager().decoder, COMPILED)


def run_once(decoder: Decoder, widths: Sequence[int], **options) -> CompiledTarget:
    """A decoder of this vocabulary compiled, each of its compiled steps run once; options as of CompiledTarget."""
    target = CompiledTarget(decoder, eager().tokenizer, eager().eos, CONTEXT, widths, **options)
    for width in widths:
        repeatable_step(target, prompt_of(32), width)()
    return target


def prompt_of(tokens: int) -> list[int]:
    """A prompt of so many ids, for what does not depend on the text."""
    return [10 + i % 50 for i in range(tokens)]


def costs_of(target, widths: Sequence[int], repeats: int, cached: int = 300) -> dict[int, float]:
    """{w: v(w)}: forwards of w tokens behind `cached` ones, over one of one token."""
    return width_costs(width_times(target, prompt_of(cached), widths, "cpu", repeats))


def conversation(target, question: Question) -> Iterator[tuple[dict, list[int], Output]]:
    """For each turn: what its row begins with, its prompt behind the turns before, and plain decoding's answer."""
    messages = []
    for number, turn in enumerate(question.turns, 1):
        messages.append({"role": "user", "content": turn})
        ids = encode(target, messages)
        answer = generate(target, ids, max_new_tokens=TOKENS)
        yield {"question_id": question.question_id, "turn": number, "category": question.category}, ids, answer
        messages.append({"role": "assistant", "content": answer.text})


def chosen(run: Run, own: Sequence[Question], categories: Sequence[str], count: int) -> list[Question]:
    """The first `count` questions of each category, `own` ones unless the run brings a file with its categories."""
    if not run.questions:
        return first_of(own, categories, count)
    found = questions(run.questions)
    return first_of(found, categories_of(found), count)


def categories_of(found: Sequence[Question]) -> list[str]:
    """Their categories, each once, in the order in which they come first."""
    return list(dict.fromkeys(question.category for question in found))


def ours(target, ids: list[int], proposer=None) -> Made:
    """TOKENS new tokens by our greedy generate behind these ids, and its trace. proposer None: plain decoding."""
    out = generate(target, ids, proposer, max_new_tokens=TOKENS, min_new_tokens=TOKENS)
    return out.ids, out.trace


def theirs(ids: list[int], **options) -> Made:
    """transformers' own generate, which keeps no trace."""
    return by_transformers(model().network, ids, TOKENS, **options), []


def targets(run: Run) -> dict[str, Target]:
    """What methods run on, each with the suffix of its methods' names."""
    return {"": eager()} if run.questions else {"": eager(), " compiled": compiled()}


def with_and_without(run: Run, ids: list[int], name: str, proposer: Callable) -> dict[str, Callable[[], Made]]:
    """Plain decoding and `name` on every target. proposer: target -> its proposer."""
    on = targets(run)
    plain = {f"plain{state}": partial(ours, of, ids) for state, of in on.items()}
    return plain | {f"{name}{state}": partial(ours, of, ids, proposer(of)) for state, of in on.items()}


def plain_beside(run: Run, ids: list[int]) -> dict[str, Callable[[], Made]]:
    """Plain decoding where `ours`, `theirs` and `loop` run, so that their texts can be compared with it; on the eager
    target it is the natural answer."""
    state = {} if run.questions else {"plain compiled": partial(ours, compiled(), ids)}
    return {"plain theirs": partial(theirs, ids)} | state


def asked(
    name: str,
    run: Run,
    categories: Sequence[str],
    count: int,
    methods: Callable,
    settings: dict,
    target=None,
    also: Callable | None = None,
    like: Callable[[str], str | None] = plain_of,
) -> list[dict]:
    """A row for every turn of the first `count` questions of each category, {"short": tokens} if its answer is short.

    methods: ids -> {name: call}. target: whose greedy texts are asked for (None: the eager one), "natural" among
    texts. also: (ids, natural answer) -> what else the row of a long answer shall hold. like: as of `each_method`.
    """
    target = target or eager()
    wanted = chosen(run, questions(), categories, max(1, count // 4) if run.quick else count)

    def measure(question: Question) -> list[dict]:
        rows = []
        for row, ids, natural in conversation(target, question):  # the natural answer is a warm-up, too
            if natural.finish == "length":
                texts, backwards = {"natural": natural.ids}, question.question_id % 2 == 1
                row |= by_question.each_method(target, ids, methods(ids), backwards=backwards, like=like, texts=texts)
                row |= also(ids, natural) if also else {}
            else:
                row["short"] = len(natural.ids)
            rows.append(row)
        return rows

    for warm_up in methods(prompt_of(32)).values():
        warm_up()
    return by_question.each(name, wanted, measure, settings | {"tokens": TOKENS, "dtype": DTYPE})


def measured(
    rows: list[dict], ratio: Callable, slow: str, fast: str, settings: dict, note: str = "", overhead=None, **facts
) -> Measured:
    """The ratio over the questions with long answers, and what is said and kept beside it. ValueError without any.

    overhead: rows of a step -> its time over a plain step's, each measured apart; then the speed is predicted, too.
    """
    counted = answered(rows)
    kinds = by_category(counted)
    beside = in_compiled(kinds, counted, slow, fast)
    shortfall = max(made["shortfall"] for row in counted for made in row.values() if isinstance(made, dict))
    facts |= {
        "settings": settings, **per_kind(kinds, slow, fast), "parted": parted(counted), "largest_shortfall": shortfall,
        "by_category": {kind: ratio(of, slow, fast).value for kind, of in kinds.items()}, "compiled": beside,
        "questions": rows,
    }  # fmt: skip
    if overhead:
        facts["predicted"] = predicted_speed(counted, fast, overhead)
        facts["behind_prompt"] = behind_prompt(counted, slow, fast)
    return Measured(ratio(counted, slow, fast), said(note, facts, len(counted)), facts)


def over_transformers(rows: list[dict], settings: dict) -> Measured:
    """`ours` over `theirs`, and beside it `loop`: our loop on transformers' own forwards."""
    loop = speed(long_enough(rows), "theirs", "loop")
    note = f"our loop on TransformersTarget: {loop.value:.2f}"
    return measured(rows, speed, "theirs", "ours", settings, note, loop=[loop.value, loop.low, loop.high])


def in_compiled(kinds: dict[str, list[dict]], rows: list[dict], slow: str, fast: str) -> dict | None:
    """The speed of `fast` compiled over `slow`, which is compiled too if it is ours; None if it was not run."""
    fast, known = f"{fast} compiled", rows[0]
    if fast not in known:
        return None
    slow = f"{slow} compiled" if f"{slow} compiled" in known else slow
    found = speed(rows, slow, fast)
    facts = {"value": found.value, "low": found.low, "high": found.high} | per_kind(kinds, slow, fast)
    return facts | {"widths": COMPILED, "problem": getattr(compiled(), "problem", None)}


def long_enough(rows: list[dict]) -> list[dict]:
    """The rows of answers that reach TOKENS tokens."""
    return [row for row in rows if "short" not in row]


def answered(rows: list[dict]) -> list[dict]:
    """The rows of long answers. ValueError without any."""
    if not (found := long_enough(rows)):
        raise ValueError(f"no answer reaches {TOKENS} tokens, so there is nothing to measure; ask other questions")
    return found


def by_category(rows: list[dict]) -> dict[str, list[dict]]:
    """Rows under their categories, in the order in which these come first."""
    return {kind: [row for row in rows if row["category"] == kind] for kind in [row["category"] for row in rows]}


def listed(values: dict) -> str:
    """{"a": 1.5, "b": 2} -> "a 1.50, b 2.00"."""
    return ", ".join(f"{name} {value:.2f}" for name, value in values.items())
