"""What was tried to make a compiled step faster, measured again: `python -m bench.overheads [words ...]`, for
lesson 11's log. With words: only changes whose description holds one of them, the others' rows stay as they are stored.

Each change is timed in turn with what it replaces, on the first layers of the model with its whole head, or alone.
Lesson 11 shows the table: what it is worth on this machine, whether the code has it, and why.
"""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from unittest import mock

import torch

from bench import assisted, common, inside, medusa
from bench.common import prompt_of
from bench.inside import by_kernel, by_sums
from bench.run import RESULTS
from lessons_lib import compiler
from lessons_lib.decoding.draft_tree import DraftTree, make_block, tree_mask
from lessons_lib.decoding.probing import repeatable_step
from lessons_lib.decoding.targets import CompiledTarget
from lessons_lib.measure import machine
from lessons_lib.measure.clock import in_turn
from lessons_lib.measure.profiler import taken_apart
from lessons_lib.models import cut
from lessons_lib.models.decoder import Decoder
from lessons_lib.models.draft import decoder_of
from lessons_lib.models.medusa import load_heads
from lessons_lib.progress import say
from lessons_lib.quantization import quantize_model
from lessons_lib.quantization.cpu import native, pointwise

LAYERS, TEXT, LONGEST, ROWS, RANKS, REPEATS = 6, 200, 672, 5, 10, 60
LIGHT, BOTH, GROUPED = "int8-weight-only", "int8", "int4-int8"
Calls = tuple[Callable, Callable]  # before, behind


@dataclass(frozen=True)
class Change:
    """kept: whether the code has it, and why. calls: make what is timed, without it and with it."""

    what: str
    kept: bool
    why: str
    calls: Callable[[], Calls]


def main(words: Sequence[str] = ()) -> int:
    """Time all that was tried, or what the words name, and store it with the other results -> exit status."""
    path = RESULTS / "ladder-overheads.json"
    kept = {row["what"]: row for row in json.loads(path.read_text(encoding="utf-8"))["rows"]} if words else {}
    wanted = lambda change: not words or any(word in change.what for word in words)  # noqa: E731
    rows = [row_of(change) if wanted(change) else kept.get(change.what) for change in tried()]
    say("where a whole step's time goes ...")
    lightest = quantize_model(common.model().target().decoder, GROUPED)
    parts = {count: parts_of(step(lightest, count)) for count in (1, ROWS)}
    facts = {
        "layers": LAYERS,
        "parts": {"format": GROUPED, "text": TEXT, "seconds": parts},
        "host": machine.host(),
        "versions": machine.versions(),
        "dtype": common.DTYPE,
    }
    path.write_text(json.dumps(facts | {"rows": [row for row in rows if row]}, indent=1) + "\n", encoding="utf-8")
    return 0


def row_of(change: Change) -> dict:
    """Both calls timed in turn: medians and samples, in seconds."""
    say(f"{change.what} ...")
    before, behind = change.calls()
    found = in_turn({"before": before, "behind": behind}, repeats=REPEATS)
    times = {name: samples.median for name, samples in found.items()}
    samples = {"samples": {name: of.times for name, of in found.items()}}
    return {"what": change.what, "kept": change.kept, "why": change.why} | times | samples


def parts_of(call: Callable) -> dict[str, float]:
    """Seconds of a compiled step, of its kernels by what they do, and of what lies between them."""
    found = taken_apart(call, runs=REPEATS, parts=inside.PARTS)
    return {"whole": sum(found.values()), "between kernels": found.pop("the rest")} | found


def tried() -> list[Change]:
    """All that was tried, in the order of the lesson's table."""
    eight, both = "weights of 8 bits instead of the model's own", "8 bits times 8 bits instead of weights of 8 bits"
    four = "4 bits times 8 bits, by our kernels in C++, instead of 8 bits times 8 bits"
    fitted = f"caches fitted to a text of {TEXT} tokens instead of {LONGEST} slots, one row"
    shared = f"{ROWS} rows as sums that share one reading, instead of the library's products"
    otherwise = f"an engine of 8 bits, all layers, attention of {ROWS} rows instead of by two products, behind"
    ways = {"by the library's kernel": by_kernel, "as sums": by_sums}
    ways |= {} if native.problem() else {"by our kernel in C++": native.attend_few_rows}
    paid = {True: "products take long to begin; used with int4-int8 alone", False: "it pays in short texts alone"}
    return [
        Change(fitted, True, "attention over slots that are never filled", slots),
        Change(shared, True, "one reading serves all rows", sums),
        Change(f"{eight}, one row", True, "half the bytes", formats(None, LIGHT)),
        Change(f"{eight}, {ROWS} rows", True, "it comes with the one above", formats(None, LIGHT, ROWS)),
        Change(f"{both}, one row", True, "for the sake of several rows", formats(LIGHT, BOTH)),
        Change(f"{both}, {ROWS} rows", True, "guesses ask for several rows", formats(LIGHT, BOTH, ROWS)),
        Change(f"{four}, one row", True, "fewer bytes, and an instruction for 64 products", formats(BOTH, GROUPED)),
        Change(f"{four}, {ROWS} rows", True, "it comes with the one above", formats(BOTH, GROUPED, ROWS)),
        Change("weights of 4 bits instead of 8, one row", False, "unpacking is work, too", formats(LIGHT, "int4")),
        Change("the compiler's guards left out", True, "what they look for never changes", guards),
        Change("a wrapper in C++ around the kernels", False, "no gain", partial(setting, cpp_wrapper=True)),
        Change("buffers in one pool, planned ahead", False, "no gain", partial(setting, memory_planning=True)),
        *(
            Change(f"{otherwise} {text} tokens: {how}", kept, paid[kept], attending(other, text))
            for how, other in ways.items()
            for kept in [other is native.attend_few_rows]
            for text in (TEXT // 2, 5 * TEXT // 2)
        ),
        Change(f"no mask built for {ROWS} rows of a chain", True, "plain causal attention will do", masks),
        Change("the token chosen by max instead of argmax", True, "the same token; no gain, and no loss", choosing),
        Change("logits not copied to hold back the end", False, "the target's logits stay whole", holding_back),
        Change("the compiled draft in 8 bits instead of unrounded", True, "half its bytes", draft),
        Change("Medusa's heads trimmed to frequent tokens", True, "less of the head to read", heads),
    ]


def small() -> Decoder:
    """The model's first LAYERS layers and its whole head."""
    return cut(common.model(), LAYERS).target().decoder


def step(decoder, rows: int = 1, fitted: bool = True, **options) -> Callable[[], None]:
    """A compiled step behind TEXT tokens, called once."""
    target = CompiledTarget(decoder, None, (), LONGEST, (rows,), fitted=fitted, **options)
    call = repeatable_step(target, prompt_of(TEXT), rows)
    call()
    return call


def slots() -> Calls:
    """Caches of LONGEST slots, and fitted ones; one row."""
    return step(small(), fitted=False), step(small())


def sums() -> Calls:
    """ROWS rows by the library's products, and as sums that share one reading."""
    return step(small(), ROWS, matmul="library"), step(small(), ROWS)


def formats(before: str | None, behind: str, rows: int = 1) -> Callable[[], Calls]:
    """Weights in two formats; None: the model's own."""
    made = lambda weights: quantize_model(small(), weights) if weights else small()  # noqa: E731
    return lambda: (step(made(before), rows), step(made(behind), rows))


def setting(**changed) -> Calls:
    """The compiler with other settings."""
    usual = step(small())
    with mock.patch.dict(compiler.ALWAYS, changed):
        return usual, step(small())


def guards() -> Calls:
    """A step that the compiler guards, and one that it does not."""
    plainly = torch.compile
    with mock.patch.object(torch, "compile", lambda *given, options, **others: plainly(*given, **others)):
        before = step(small())
    return before, step(small())


def attending(other: Callable, text: int) -> Callable[[], Calls]:
    """Whole steps of ROWS rows in 8 bits behind so many tokens: attention by two products, as usual, and by `other`."""

    def made() -> Calls:
        found = [repeatable_step(attended(how), prompt_of(text), ROWS) for how in (None, other)]
        for call in found:
            call()
        return tuple(found)

    return made


@cache
def attended(how: Callable | None) -> CompiledTarget:
    """The whole model in 8 bits, compiled for ROWS rows and texts of any length; how it attends, None: as usual."""
    with mock.patch.object(pointwise, "attend_by_products", how or pointwise.attend_by_products):
        target = CompiledTarget(eight(), None, (), LONGEST, (ROWS,), fitted=True)
        repeatable_step(target, prompt_of(TEXT), ROWS)()
    return target


@cache
def eight() -> Decoder:
    """The whole model in 8 bits."""
    return quantize_model(common.model().target().decoder, BOTH)


def masks() -> Calls:
    """A mask built for ROWS rows of a chain behind TEXT tokens, and a block that needs none."""
    chain = DraftTree.chain([0] * (ROWS - 1))
    cache = common.eager().new_cache(TEXT)
    return lambda: tree_mask(1, chain, TEXT), lambda: make_block([0], chain, cache)


def choosing() -> Calls:
    """The favourite of one row of logits (1, V), by argmax and by max."""
    logits = torch.randn(1, common.model().shape.vocab_size)
    return lambda: logits.argmax(-1).tolist(), lambda: logits.max(-1).indices.tolist()


def holding_back() -> Calls:
    """The favourite of a copy of one row of logits (1, V), and of the row itself."""
    logits = torch.randn(1, common.model().shape.vocab_size)
    return lambda: logits.clone().max(-1).indices.tolist(), lambda: logits.max(-1).indices.tolist()


def draft() -> Calls:
    """The draft's step unrounded, and with weights of 8 bits; one row."""
    wide = decoder_of(assisted.draft().network)
    return step(wide), step(quantize_model(wide, LIGHT))


def heads() -> Calls:
    """RANKS favourites of each of Medusa's heads for one state, whole and trimmed. NotMeasured without heads."""
    trimmed, whole = medusa.heads(), load_heads(medusa.HEADS, common.model())
    whole.rows, whole.kept = whole.lm_head, None
    state = torch.zeros(1, whole.width, dtype=whole.lm_head.dtype)
    return tuple(partial(torch.no_grad()(of.favourites), state, RANKS, chosen=[0]) for of in (whole, trimmed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
