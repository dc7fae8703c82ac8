"""Results (every lesson): what was predicted, measured, compared and published, as one record and its tables.

A lesson's results are its scorecard: `show` publishes them, `collect` reads them from executed notebooks. A claim is a
result with a name and a bar set beforehand; claims are measured by the benches and kept in bench/results/claims.json.
A claim below its bar stays, and says so. A partial run replaces only its own rows; a quick run never overwrites a full
one. Names keep their meaning once given. Standard library alone, so that README can be written before anything else is
imported.
"""

from __future__ import annotations

import datetime
import json
import math
import operator
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

from lessons_lib.measure import tables

if TYPE_CHECKING:
    from lessons_lib.measure.clock import Ratio

MIME = "application/vnd.lessons-lib.scores+json"
WITHIN = 0.25  # of the prediction
COMPARE = {">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt}
NUMBERS = ("predicted", "measured", "limit", "peer", "published", "low", "high")


@dataclass(frozen=True)
class Result:
    """One result. Numbers are in `unit`; None or NaN: not measured, or nothing to say.

    limit: the physical limit (of a time: cost.limit). peer: the official implementation (peer_name), measured in the
    same run. published: somebody's number, from `source`. low, high: the 95 % interval of `measured`. bar: what a claim
    was to reach, such as ">= 2.0", over its `baseline`. host: what it was measured on, where that is another machine
    than the file's. TypeError for what is no number.
    """

    lesson: str
    claim: str
    unit: str = "x"
    predicted: float | None = None
    measured: float | None = None
    limit: float | None = None
    peer: float | None = None
    peer_name: str = ""
    published: float | None = None
    source: str = ""
    note: str = ""
    low: float | None = None
    high: float | None = None
    bar: str = ""
    baseline: str = ""
    date: str = ""
    host: str = ""
    quick: bool = False

    def __post_init__(self):
        for name in NUMBERS:
            value = getattr(self, name)  # NumPy and torch scalars become floats, which JSON can hold
            object.__setattr__(self, name, None if value is None or math.isnan(value) else _plain(value))

    @property
    def ratio(self) -> float | None:
        """measured / predicted, None if either is missing or the prediction is 0."""
        if self.measured is None or not self.predicted:
            return None
        return self.measured / self.predicted

    @property
    def verdict(self) -> str:
        """'within 25%' if |measured/predicted - 1| <= 0.25, else how far off; '' without both numbers."""
        if self.ratio is None:
            return "within 25%" if self.measured == self.predicted == 0 else ""
        error = self.ratio - 1
        return "within 25%" if abs(error) <= WITHIN + 1e-9 else f"off by {error:+.0%}"

    @property
    def holds(self) -> bool | None:
        """Whether `measured` meets the bar; None without one of both. The interval does not matter."""
        return holds(self.measured, self.bar)

    def record(self) -> dict[str, Any]:
        """All of it as JSON holds it, with what follows from it."""
        return asdict(self) | {"ratio": self.ratio, "verdict": self.verdict, "holds": self.holds}

    def row(self) -> dict[str, Any]:
        """What is known of it, as JSON holds it."""
        return {name: value for name, value in asdict(self).items() if value not in (None, "", False)}


def from_row(row: dict[str, Any]) -> Result:
    """A Result from one JSON row; fields of newer versions are ignored. TypeError without lesson and claim."""
    known = {field.name for field in fields(Result)}
    return Result(**{name: value for name, value in row.items() if name in known})


def _plain(value: Any) -> int | float:
    return value if type(value) in (int, float) else float(value)


# --- The scorecard of lessons

SCORECARD = ("lesson", "claim", "predicted", "measured", "ratio", "peer in the run", "published", "limit", "verdict")
EXPLAINED = (
    "Ratio: measured over predicted; within 25% means from 0.75 to 1.25. Peer: the official implementation, "
    "measured in the same run. Limit: what the method allows at best or, of a time, the hardware: all bytes at the "
    "read bandwidth, or all FLOPs at the best rate seen in any product. -: nothing to say."
)


def show(results: Sequence[Result]) -> None:
    """Publish results from a lesson: in a notebook a table with the rows as data for `collect`, else text."""
    cells = [scorecard_cells(result) for result in results]
    printed = summary(results) + "\n" + tables.text(SCORECARD, cells)
    ipython = sys.modules.get("IPython")  # not imported: then this is no notebook
    shell = ipython.get_ipython() if ipython else None
    if shell is None or not hasattr(shell, "kernel"):
        print(printed)
        return
    page = tables.html(SCORECARD, cells) + f"<p>{summary(results)}</p>"
    rows = [result.row() for result in results]
    ipython.display.display({"text/plain": printed, "text/html": page, MIME: rows}, raw=True)


def collect(notebooks: Iterable[str | Path]) -> list[Result]:
    """What `show` left in executed notebooks; a later row of the same lesson and claim replaces one.

    OSError for a notebook that cannot be read, ValueError for what is no JSON; TypeError as `from_row`.
    """
    found: dict[tuple[str, str], Result] = {}
    for path in notebooks:
        notebook = json.loads(Path(path).read_text(encoding="utf-8"))
        outputs = [output for cell in notebook.get("cells", ()) for output in cell.get("outputs", ())]
        for row in (row for output in outputs for row in output.get("data", {}).get(MIME, ())):
            result = from_row(row)
            found[result.lesson, result.claim] = result
    return list(found.values())


def summary(results: Sequence[Result]) -> str:
    """One line: how many results, how many of them predicted within 25 %, how many not measured."""
    judged = [result for result in results if result.verdict]
    good = sum(result.verdict == "within 25%" for result in judged)
    line = f"{len(results)} claims: {good} of {len(judged)} predictions within 25%"
    missing = sum(result.measured is None for result in results)
    return line + (f", {missing} not measured." if missing else ".")


def scorecard_cells(result: Result) -> list[str]:
    """The cells of its row under SCORECARD."""

    def amount(value: float | None, missing: str = "-") -> str:
        return missing if value is None else f"{tables.number(value)} {result.unit}".strip()

    def named(value: float | None, name: str) -> str:
        return amount(value) + (f" ({name})" if name and value is not None else "")

    claim = result.claim + (f" ({result.note})" if result.note else "")
    ratio = "-" if result.ratio is None else f"{result.ratio:.2f}"
    measured = amount(result.measured, "not measured")
    known = [named(result.peer, result.peer_name), named(result.published, result.source), amount(result.limit)]
    return [result.lesson, claim, amount(result.predicted), measured, ratio, *known, result.verdict or "-"]


def write_scorecard(
    results: Sequence[Result], folder: str | Path, machine: str = "", claims: Sequence[Result] = ()
) -> list[Path]:
    """Write scorecard.html (self-contained), .md and .json into folder; gives their paths.

    machine: a line saying where this was measured. claims: for a second table. OSError for a folder that cannot be
    written.
    """
    parts: list[str | tables.Table] = [
        summary(results),
        machine,
        (SCORECARD, [scorecard_cells(r) for r in results]),
        EXPLAINED,
    ]
    if claims:
        parts += ["Claims of the benchmark:", (CLAIMS, claim_cells(claims))]
    paths = tables.write_page(Path(folder) / "scorecard.html", "Scorecard", [part for part in parts if part])
    scores, named = ([result.record() for result in of] for of in (results, claims))
    content = {"summary": summary(results), "machine": machine, "scores": scores, "claims": named}
    paths.append(Path(folder) / "scorecard.json")
    paths[-1].write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return paths


# --- Claims, in bench/results/claims.json

CLAIMS = ("claim", "value", "95% interval", "bar", "holds", "baseline", "date", "note")


def holds(value: float | None, bar: str) -> bool | None:
    """Whether value meets a bar such as ">= 2.0" or "<= 1.03"; None without a bar or a value.

    Raises ValueError for a bar of another form.
    """
    if not bar:
        return None
    sign, _, limit = bar.strip().partition(" ")
    try:
        compare, limit = COMPARE[sign], float(limit)
    except (KeyError, ValueError):
        raise ValueError(f"Cannot read the bar {bar!r}; write it like '>= 2.0' or '<= 1.03'.") from None
    return None if value is None or math.isnan(value) else compare(value, limit)


def make_claim(
    claim: str, measured: Ratio | float | None, bar: str = "", baseline: str = "", unit: str = "x", note: str = ""
) -> Result:
    """A claim dated today. measured: a Ratio, or one number; None and NaN: not measured.

    baseline names target, dtype and state of what is compared with. ValueError for a bar that cannot be read.
    """
    holds(None, bar)
    value, interval = getattr(measured, "value", measured), {}
    if hasattr(measured, "low"):
        interval = {"low": measured.low, "high": measured.high}
    today = datetime.date.today().isoformat()
    return Result("", claim, unit, measured=value, **interval, bar=bar, baseline=baseline, date=today, note=note)


def load(path: str | Path) -> list[Result]:
    """The rows of a claims file; none if there is no file. Raises ValueError for a file that is damaged."""
    return [_from_file(row) for row in _read(Path(path)).get("rows", [])]


def update(
    path: str | Path, claims: Sequence[Result], quick: bool = False, host: Any = None, versions: Any = None
) -> list[Result]:
    """Write claims into a file, which is replaced in one move; gives all rows that it then holds.

    Other claims' rows stay as they are. With quick=True the rows are marked quick, and those whose claim has
    a full row already are dropped. host, versions: of this run; they become the file's if no row of another machine
    stays, else the new rows name their host. One without a value replaces none that has one. Errors as `load`.
    """
    path = Path(path)
    old = _read(path)
    kept = {row["claim"]: row for row in old.get("rows", [])}
    new = [_to_file(claim) | ({"quick": True} if quick else {}) for claim in claims]
    full = {name for name, row in kept.items() if not row.get("quick")}
    measured = {name for name, row in kept.items() if row["value"] is not None}
    new = [row for row in new if not (quick and row["claim"] in full)]
    new = [row for row in new if row["value"] is not None or row["claim"] not in measured]
    if new:
        named = set(kept) - {row["claim"] for row in new} and described(host) != described(old.get("host", ""))
        new = [row | ({"host": described(host)} if named else {}) for row in new]
        merged = kept | {row["claim"]: row for row in new}
        head = {name: old[name] for name in ("host", "versions")} if named else {}
        head = head or {"host": host or old.get("host", ""), "versions": versions or old.get("versions", {})}
        _write(path, head | {"rows": [merged[name] for name in sorted(merged)]})
    return load(path)


def described(host: Any) -> str:
    """A host in a few words, by what decides about speed."""
    if not isinstance(host, dict):
        return host or ""
    parts = [host.get("cpu"), host.get("instructions"), f"{host.get('cores')} cores"]
    return ", ".join([str(part) for part in parts if part] + [host["device"]] * (host.get("device") != host.get("cpu")))


def short_of_bar(claims: Sequence[Result]) -> list[Result]:
    """The claims that fall short of their bar, and those with a bar but without a value."""
    return [claim for claim in claims if claim.bar and not claim.holds]


def claim_table(claims: Sequence[Result], columns: Sequence[str] = CLAIMS) -> str:
    """The claims as a Markdown table, of these columns. ValueError for one that is none of CLAIMS."""
    chosen = [CLAIMS.index(column) for column in columns]
    return tables.markdown(columns, [[line[i] for i in chosen] for line in claim_cells(claims)])


def claim_cells(claims: Sequence[Result]) -> list[list[str]]:
    """The cells of claims under CLAIMS."""
    said = {True: "yes", False: "NO", None: "-"}
    lines = []
    for row in claims:
        shown = partial(_as_fine_as, row.bar)
        value = "not measured" if row.measured is None else f"{shown(row.measured)} {row.unit}".strip()
        interval = "-" if row.low is None else f"{shown(row.low)} to {shown(row.high)}"
        note = "; ".join(filter(None, [row.note, row.host and f"on {row.host}", "quick run" if row.quick else ""]))
        lines.append([row.claim, value, interval, row.bar or "-", said[row.holds], row.baseline, row.date, note])
    return lines


def _as_fine_as(bar: str, value: float) -> str:
    """One decimal more than a bar of three or more has ('<= 1.005' -> '1.0018'), which decide; else three digits."""
    decimals = len(bar.partition(".")[2])
    return f"{value:.{decimals + 1}f}" if decimals > 2 else tables.number(value)


def _to_file(claim: Result) -> dict[str, Any]:
    names = ("low", "high", "unit", "bar", "holds", "baseline", "date", "note")
    return {"claim": claim.claim, "value": claim.measured} | {name: getattr(claim, name) for name in names}


def _from_file(row: dict[str, Any]) -> Result:
    return from_row({"lesson": "", **row, "measured": row["value"]})


def _read(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is damaged ({error}); restore or delete it.") from error


def _write(path: Path, content: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.partial")
    unfinished.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    os.replace(unfinished, path)


# --- What each technique is worth: its claims beside what was counted, predicted and published

TECHNIQUES = (
    "technique", "answers counted", "tokens per pass", "speedup", "over", "predicted", "over its peer", "published",
)  # fmt: skip
GPT_FAST = "gpt-fast, Llama-2-7B, A100-80GB, batch 1"
VICUNA = "Spec-Bench, Vicuna-7B, one A100, batch 1"


def _technique(name: str, claim: str, over: str, peer: str = "", peer_name: str = "", published: float | None = None,
               source: str = "") -> tuple[Result, str, str]:  # fmt: skip
    """(what is known beforehand, the claim of its speed over `over`, the claim of its speed over its peer)."""
    return Result("", name, baseline=over, peer_name=peer_name, published=published, source=source), claim, peer


KNOWN = (
    _technique("KV cache, behind 512 tokens", "cache/512/vs-uncached", "no cache"),
    _technique(
        "readable decoder, compiled", "decoder/bf16/vs-generate", "transformers generate, eager",
        published=4.2, source=GPT_FAST,
    ),
    _technique(
        "continuous batching", "serving/vs-sequential", "one request after another", "serving/vs-generate-batch",
        "transformers' continuous batching", 23, "at most, over static batches of 4; Anyscale, OPT-13B, A100-40GB",
    ),
    _technique(
        "draft model", "assisted/mixed/vs-plain", "plain decoding", "assisted/vs-transformers",
        "transformers, assistant_model", 1.52, f"2.28 tokens per forward pass; {VICUNA}, draft of 68M",
    ),
    _technique(
        "prompt lookup, grounded prompts", "prompt-lookup/grounded/vs-plain", "plain decoding",
        "prompt-lookup/vs-transformers", "transformers, prompt_lookup_num_tokens",
        2.4, "Saxena 2023, CNN/DM, Mistral-7B, A100-40GB, batch 1",
    ),
    _technique(
        "prompt lookup, free writing", "prompt-lookup/free/vs-plain", "plain decoding",
        published=1.66, source=f"1.75 tokens per forward pass; {VICUNA}, all tasks",
    ),
    _technique(
        "lookahead, code and lists", "lookahead/code-lists/compression", "plain decoding",
        published=1.34, source=f"1.64 tokens per forward pass; {VICUNA}",
    ),
    _technique(
        "Medusa", "medusa/vs-plain", "plain decoding",
        published=1.71, source=f"2.31 tokens per forward pass; {VICUNA}",
    ),
    _technique(
        "weights and inputs in 8 bits, compiled", "int8/vs-generate", "transformers generate, eager",
        published=1.47, source=f"over bf16, weights alone; {GPT_FAST}",
    ),
    _technique(
        "weights in 4 bits, compiled", "int4/vs-generate", "transformers generate, eager",
        published=1.89, source=f"over bf16; {GPT_FAST}",
    ),
    _technique(
        "the ladder, free writing", "ladder/free/vs-generate", "transformers generate, eager",
        "ladder/plain/vs-llamacpp-best", "llama.cpp, plain; ours without guesses, both kinds of prompts",
    ),
    _technique(
        "the ladder, grounded prompts", "ladder/grounded/vs-generate", "transformers generate, eager",
        "ladder/grounded/vs-llamacpp-best", "llama.cpp, plain or with its prompt lookup",
        9.6, f"compiled, int4, a draft; {GPT_FAST}",
    ),
)  # fmt: skip


def technique_cells(results: Path) -> list[list[str]]:
    """A row under TECHNIQUES for every technique whose speed was measured. results: the folder of claims.json.

    ValueError for a file there that is damaged.
    """
    known = {claim.claim: claim for claim in load(results / "claims.json") if claim.measured is not None}
    return [_technique_row(*of, known, results) for of in KNOWN if of[1] in known]


def write_benchmarks(results: Path, path: Path) -> Path:
    """Both tables, techniques and claims, as one self-contained HTML page, and as Markdown beside it; gives its path.

    ValueError as `technique_cells`.
    """
    claims = (CLAIMS, claim_cells(load(results / "claims.json")))
    return tables.write_page(
        path, "Benchmarks", ["Techniques:", (TECHNIQUES, technique_cells(results)), "Claims:", claims]
    )[0]


def _times(value: float | None, name: str = "") -> str:
    return "-" if value is None else f"{tables.number(value)} x" + (f" ({name})" if name else "")


def _times(value: float | None, name: str = "") -> str:
    return "-" if value is None else f"{tables.number(value)} x" + (f" ({name})" if name else "")


def _times(value: float | None, name: str = "") -> str:
    return "-" if value is None else f"{tables.number(value)} x" + (f" ({name})" if name else "")


def _technique_row(of: Result, speed: str, peer: str, known: dict[str, Result], results: Path) -> list[str]:
    raw_file, claim = results / f"{speed.replace('/', '-')}.json", known[speed]
    raw = json.loads(raw_file.read_text(encoding="utf-8")) if raw_file.exists() else {}
    kinds = [row["category"] for row in raw.get("questions", []) if "short" not in row]  # too short to count
    tau = raw.get("tokens_per_pass")
    tau = mean(tau.values()) if isinstance(tau, dict) else tau  # of several kinds of text
    return [
        of.claim,
        f"{len(kinds)}: {', '.join(dict.fromkeys(kinds))}" if kinds else "-",
        "-" if tau is None else tables.number(tau),
        _times(raw["speed"][0] if "speed" in raw else claim.measured),  # some claims count forward passes
        "; ".join(filter(None, [of.baseline, claim.host and f"on {claim.host}"])),
        _times(raw.get("predicted")),
        _times(known[peer].measured, of.peer_name) if peer in known else "-",
        _times(of.published, of.source),
    ]
