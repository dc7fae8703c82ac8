"""What makes a compiled step fast: `python -m bench.overheads [words ...]`, for the table of lesson 11.

Each change is timed in alternation with the code it replaces, on the first layers of the model with its whole head, or
alone. With words: only changes whose description contains one of them. Rows that are not measured stay as stored, among
them those of changes that were tried once and rejected.
"""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from bench import assisted, common, medusa
from bench.common import prompt_of
from bench.run import RESULTS
from lessons_lib.decoding.draft_tree import DraftTree, make_input, tree_mask
from lessons_lib.decoding.probing import repeatable_step
from lessons_lib.decoding.targets import CompiledTarget
from lessons_lib.measure import machine
from lessons_lib.measure.clock import in_turn
from lessons_lib.measure.profiler import profile_parts
from lessons_lib.models import cut
from lessons_lib.models.decoder import Decoder
from lessons_lib.models.draft import decoder_of
from lessons_lib.models.medusa import load_heads
from lessons_lib.progress import say
from lessons_lib.quantization import quantize_model

LAYERS, TEXT, LONGEST, ROWS, RANKS, REPEATS = 6, 200, 672, 5, 10, 60
LIGHT, BOTH, GROUPED = "W8A16", "W8A8", "W4A8"
PARTS = {  # kernels of a step by name: attention of one token is a compiled loop, of several it is matmuls or a kernel
    "attention": r"bmm|softmax|::attend_few_rows",
    "products": r"gemm|addmm|::mm$|qlinear|::multiply_grouped",
    "norms, rotation": r"^graph_",
}
Calls = tuple[Callable, Callable]  # before, after


@dataclass(frozen=True)
class Change:
    """A change to the compiled step.

    kept: whether the code has the change; why: the reason. calls: creates the timed functions, before and after the
    change.
    """

    what: str
    kept: bool
    why: str
    calls: Callable[[], Calls]


def main(words: Sequence[str] = ()) -> int:
    """Time all changes, or those named by words, and store them with the other results; returns the exit status."""
    path = RESULTS / "ladder-overheads.json"
    rows = {row["what"]: row for row in json.loads(path.read_text(encoding="utf-8"))["rows"]} if path.exists() else {}
    for change in changes():
        if not words or any(word in change.what for word in words):
            rows[change.what] = row_of(change)
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
    path.write_text(json.dumps(facts | {"rows": list(rows.values())}, indent=1) + "\n", encoding="utf-8")
    return 0


def row_of(change: Change) -> dict:
    """Time both calls in alternation: medians and samples in seconds."""
    say(f"{change.what} ...")
    before, after = change.calls()
    found = in_turn({"before": before, "after": after}, repeats=REPEATS)
    times = {name: samples.median for name, samples in found.items()}
    samples = {"samples": {name: of.times for name, of in found.items()}}
    return {"what": change.what, "kept": change.kept, "why": change.why} | times | samples


def parts_of(call: Callable) -> dict[str, float]:
    """Seconds of a compiled step, of its kernels by kind, and of the time between them."""
    found = profile_parts(call, runs=REPEATS, parts=PARTS)
    return {"whole": sum(found.values()), "between kernels": found.pop("the rest")} | found


def changes() -> list[Change]:
    """Every change in the code, and 4-bit weights for one token, which were rejected."""
    eight, both = "weights of 8 bits instead of the model's own", "8 bits times 8 bits instead of weights of 8 bits"
    four = "4 bits times 8 bits, by our kernels in C++, instead of 8 bits times 8 bits"
    fitted = f"caches fitted to a text of {TEXT} tokens instead of {LONGEST} slots, one row"
    shared = f"{ROWS} rows as sums that share one reading, instead of the library's products"
    return [
        Change(fitted, True, "attention over slots that are never filled", slots),
        Change(shared, True, "one reading serves all rows", sums),
        Change(f"{eight}, one row", True, "half the bytes", formats(None, LIGHT)),
        Change(f"{eight}, {ROWS} rows", True, "it comes with the one above", formats(None, LIGHT, ROWS)),
        Change(f"{both}, one row", True, "for the sake of several rows", formats(LIGHT, BOTH)),
        Change(f"{both}, {ROWS} rows", True, "draft tokens make several rows", formats(LIGHT, BOTH, ROWS)),
        Change(f"{four}, one row", True, "fewer bytes, and an instruction for 64 products", formats(BOTH, GROUPED)),
        Change(f"{four}, {ROWS} rows", True, "it comes with the one above", formats(BOTH, GROUPED, ROWS)),
        Change("weights of 4 bits instead of 8, one row", False, "unpacking is work, too", formats(LIGHT, "W4A16")),
        Change(f"no mask built for {ROWS} rows of a chain", True, "plain causal attention will do", masks),
        Change("the compiled draft in 8 bits instead of unrounded", True, "half its bytes", draft),
        Change("Medusa's heads trimmed to frequent tokens", True, "less of the head to read", heads),
    ]


def small() -> Decoder:
    """The model's first LAYERS layers and its whole head."""
    return cut(common.model(), LAYERS).target().decoder


def step(decoder, rows: int = 1, fitted: bool = True, **options) -> Callable[[], None]:
    """A compiled step after TEXT tokens, called once in advance."""
    target = CompiledTarget(decoder, None, (), LONGEST, (rows,), fitted=fitted, **options)
    call = repeatable_step(target, prompt_of(TEXT), rows)
    call()
    return call


def slots() -> Calls:
    """Caches of LONGEST slots, and caches fitted to the text; one token."""
    return step(small(), fitted=False), step(small())


def sums() -> Calls:
    """ROWS tokens by the library's matmuls, and as sums that share one read of the weights."""
    return step(small(), ROWS, matmul="library"), step(small(), ROWS)


def formats(before: str | None, after: str, rows: int = 1) -> Callable[[], Calls]:
    """Weights in two formats; None: the model's own."""
    made = lambda weights: quantize_model(small(), weights) if weights else small()  # noqa: E731
    return lambda: (step(made(before), rows), step(made(after), rows))


def masks() -> Calls:
    """A mask built for a chain of ROWS tokens after TEXT tokens, and a pass that needs no mask."""
    chain = DraftTree.chain([0] * (ROWS - 1))
    cache = common.eager().new_cache(TEXT)
    return lambda: tree_mask(1, chain, TEXT), lambda: make_input([0], chain, cache)


def draft() -> Calls:
    """The draft's step with unrounded and with 8-bit weights; one token."""
    wide = decoder_of(assisted.draft().network)
    return step(wide), step(quantize_model(wide, LIGHT))


def heads() -> Calls:
    """RANKS most likely tokens of each Medusa head for one state, with whole and trimmed heads."""
    trimmed, whole = medusa.heads(), load_heads(medusa.HEADS, common.model())
    whole.rows, whole.kept = whole.lm_head, None
    state = torch.zeros(1, whole.width, dtype=whole.lm_head.dtype)
    return tuple(partial(torch.no_grad()(of.top_tokens), state, RANKS, chosen=[0]) for of in (whole, trimmed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
