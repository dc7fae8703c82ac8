"""Results (every lesson): predicted, measured, peer and published values in one record, and the tables made of them.

A lesson's results are its scorecard: `show` publishes them, `collect` reads them from executed notebooks. A claim is a
result with a name and a bar that was set beforehand; the benches measure claims and store them in
bench/results/claims.json. A claim that misses its bar stays in the file and is marked. A partial run replaces only its
own rows, and a quick run never overwrites a full one. Names never change their meaning.
"""

from __future__ import annotations

import datetime
import json
import math
import operator
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

from lessons_lib.measure import tables
from lessons_lib.measure.clock import Interval
from lessons_lib.paths import write_whole

MIME = "application/vnd.lessons-lib.scores+json"
WITHIN = 0.25  # a prediction counts as right within this factor beyond 1, too high or too low
COMPARE = {">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt}
NUMBERS = ("predicted", "measured", "limit", "peer", "published", "low", "high")


@dataclass(frozen=True)
class Result:
    """One result. Numbers are in `unit`; None or NaN means not measured or not applicable.

    limit: the physical limit (of a time: cost.limit). peer: the official implementation (peer_name), measured in the
    same run. published: a published number, from `source`. low, high: 95% interval of `measured`; with `runs`, the
    lowest and the highest of so many, too few for one. bar: the claim's target, such as ">= 2.0", over its `baseline`.
    host: the machine, if it differs from the file's.
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
    runs: int | None = None
    bar: str = ""
    baseline: str = ""
    date: str = ""
    host: str = ""
    quick: bool = False

    def __post_init__(self):
        for name in NUMBERS:
            value = getattr(self, name)
            if value is not None and math.isnan(value):
                value = None
            elif value is not None and type(value) is not int:
                value = float(value)  # JSON needs plain numbers, not NumPy or torch scalars
            object.__setattr__(self, name, value)

    @property
    def ratio(self) -> float | None:
        """measured / predicted; None if either is missing or the prediction is 0."""
        if self.measured is None or not self.predicted:
            return None
        return self.measured / self.predicted

    @property
    def verdict(self) -> str:
        """'within 25%' if max(r, 1/r) <= 1.25 for r = measured/predicted, else that factor; '' without both numbers.

        A time and the rate that is its inverse thus get the same verdict.
        """
        if self.ratio is None:
            return "within 25%" if self.measured == self.predicted == 0 else ""
        factor = max(self.ratio, 1 / self.ratio) if self.ratio > 0 else math.inf
        return "within 25%" if factor <= 1 + WITHIN + 1e-9 else f"off by a factor of {factor:.2f}"

    @property
    def interval(self) -> Interval | None:
        """`measured` with low, high and runs; None without them."""
        return None if self.low is None else Interval(self.measured, self.low, self.high, runs=self.runs)

    @property
    def holds(self) -> bool | None:
        """Whether `measured` meets the bar, regardless of the interval; None if one of them is missing."""
        return holds(self.measured, self.bar)

    def record(self) -> dict[str, Any]:
        """All fields and derived values, ready for JSON."""
        return asdict(self) | {"ratio": self.ratio, "verdict": self.verdict, "holds": self.holds}

    def row(self) -> dict[str, Any]:
        """The fields that are set, ready for JSON."""
        # not `in (None, "", False)`, which holds for 0, too
        return {name: value for name, value in asdict(self).items() if value not in (None, "") and value is not False}


def from_row(row: dict[str, Any]) -> Result:
    """A Result from one JSON row, which lacks empty fields; unknown fields (of newer versions) are ignored."""
    known = {field.name for field in fields(Result)}
    return Result(**{"unit": ""} | {name: value for name, value in row.items() if name in known})


# --- The lessons' scorecard

SCORECARD = ("lesson", "claim", "predicted", "measured", "ratio", "peer in the run", "published", "limit", "verdict")
EXPLAINED = (
    "Ratio: measured over predicted; within 25% means from 0.80 to 1.25. Peer: the official implementation, "
    "measured in the same run. Limit: what the method allows at best or, of a time, the hardware: all bytes at the "
    "read bandwidth, or all FLOPs at the best rate seen in any matmul. -: nothing to say."
)


def show(results: Sequence[Result]) -> None:
    """Publish a lesson's results: in a notebook an HTML table with its rows as data for `collect`, else plain text."""
    headings, cells = filled(SCORECARD, [scorecard_cells(result) for result in results])
    printed = summary(results) + "\n" + tables.text(headings, cells)
    ipython = sys.modules.get("IPython")  # if not imported, this is no notebook
    shell = ipython.get_ipython() if ipython else None
    if shell is None or not hasattr(shell, "kernel"):
        print(printed)
        return
    page = tables.html(headings, cells) + f"<p>{summary(results)}</p>"
    rows = [result.row() for result in results]
    ipython.display.display({"text/plain": printed, "text/html": page, MIME: rows}, raw=True)


def filled(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> tables.Table:
    """Headings and rows without the columns in which every row has "-"."""
    kept = [i for i in range(len(headings)) if any(row[i] != "-" for row in rows)]
    return [headings[i] for i in kept], [[row[i] for i in kept] for row in rows]


def collect(notebooks: Iterable[str | Path]) -> list[Result]:
    """Read the results that `show` stored in executed notebooks. For the same lesson and claim the last row counts."""
    found: dict[tuple[str, str], Result] = {}
    for path in notebooks:
        notebook = json.loads(Path(path).read_text(encoding="utf-8"))
        outputs = [output for cell in notebook.get("cells", ()) for output in cell.get("outputs", ())]
        for row in (row for output in outputs for row in output.get("data", {}).get(MIME, ())):
            result = from_row(row)
            found[result.lesson, result.claim] = result
    return list(found.values())


def summary(results: Sequence[Result]) -> str:
    """One line: number of results, of predictions within 25%, and of results not measured."""
    judged = [result for result in results if result.verdict]
    good = sum(result.verdict == "within 25%" for result in judged)
    line = f"{len(results)} claims: {good} of {len(judged)} predictions within 25%"
    missing = sum(result.measured is None for result in results)
    return line + (f", {missing} not measured." if missing else ".")


def scorecard_cells(result: Result) -> list[str]:
    """The cells of one result under SCORECARD."""

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
    """Write scorecard.html (self-contained), .md and .json into folder; returns their paths.

    machine: a line that describes where this was measured. claims: results for a second table.
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

CLAIMS = ("claim", "value", "interval", "bar", "holds", "baseline", "date", "note")


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
    claim: str, measured: Interval | float | None, bar: str = "", baseline: str = "", unit: str = "x", note: str = ""
) -> Result:
    """A claim dated today. measured: a value with its interval, or one number; None and NaN mean not measured.

    baseline: target, dtype and state of the thing compared with.
    """
    holds(None, bar)
    found = {"measured": measured}
    if isinstance(measured, Interval):
        found = {"measured": measured.value, "low": measured.low, "high": measured.high, "runs": measured.runs}
    today = datetime.date.today().isoformat()
    return Result("", claim, unit, **found, bar=bar, baseline=baseline, date=today, note=note)


def load(path: str | Path) -> list[Result]:
    """Read a claims file; empty if there is no file. Raises ValueError if the file is damaged."""
    return [_from_file(row) for row in _read(Path(path)).get("rows", [])]


def update(
    path: str | Path, claims: Sequence[Result], quick: bool = False, host: Any = None, versions: Any = None
) -> list[Result]:
    """Merge claims into a file, which is replaced atomically; returns all rows of the new file.

    Rows of other claims stay as they are. With quick=True the new rows are marked quick and never replace a full row. A
    row without a value never replaces one with a value. host, versions: of this run. They become the file's if no row
    of another machine remains; otherwise the new rows name their host. Raises ValueError if the file is damaged.
    """
    path = Path(path)
    old = _read(path)
    kept = {row["claim"]: row for row in old.get("rows", [])}
    new = [_to_file(claim) | ({"quick": True} if quick else {}) for claim in claims]
    # drop new rows that would replace better ones
    full = {name for name, row in kept.items() if not row.get("quick")}
    measured = {name for name, row in kept.items() if row["value"] is not None}
    new = [row for row in new if not (quick and row["claim"] in full)]
    new = [row for row in new if row["value"] is not None or row["claim"] not in measured]
    if new:
        # name the host if rows of another machine remain
        named = set(kept) - {row["claim"] for row in new} and described(host) != described(old.get("host", ""))
        new = [row | ({"host": described(host)} if named else {}) for row in new]
        # merge and write
        merged = kept | {row["claim"]: row for row in new}
        head = {name: old[name] for name in ("host", "versions")} if named else {}
        head = head or {"host": host or old.get("host", ""), "versions": versions or old.get("versions", {})}
        content = head | {"rows": [merged[name] for name in sorted(merged)]}
        write_whole(path, json.dumps(content, indent=1) + "\n")
    return load(path)


def described(host: Any) -> str:
    """A host in a few words: processor, instructions, cores, device."""
    if not isinstance(host, dict):
        return host or ""
    parts = [host.get("cpu"), host.get("instructions"), f"{host.get('cores')} cores"]
    return ", ".join([str(part) for part in parts if part] + [host["device"]] * (host.get("device") != host.get("cpu")))


def short_of_bar(claims: Sequence[Result]) -> list[Result]:
    """The claims with a bar that miss it or have no value."""
    return [claim for claim in claims if claim.bar and not claim.holds]


def claim_table(claims: Sequence[Result]) -> str:
    """The claims as a Markdown table."""
    return tables.markdown(CLAIMS, claim_cells(claims))


def claim_cells(claims: Sequence[Result]) -> list[list[str]]:
    """The cells of claims under CLAIMS, a row for each."""
    said = {True: "yes", False: "NO", None: "-"}
    lines = []
    for row in claims:
        shown = partial(as_fine_as, row.bar)
        value = "not measured" if row.measured is None else f"{shown(row.measured)} {row.unit}".strip()
        interval = row.interval.cell(shown) if row.interval else "-"
        note = "; ".join(filter(None, [row.note, row.host and f"on {row.host}", "quick run" if row.quick else ""]))
        lines.append([row.claim, value, interval, row.bar or "-", said[row.holds], row.baseline, row.date, note])
    return lines


def as_fine_as(bar: str, value: float) -> str:
    """Format with one decimal more than a bar of three or more ('<= 1.005' -> '1.0018'), else with three digits."""
    decimals = len(bar.partition(".")[2])
    return f"{value:.{decimals + 1}f}" if decimals > 2 else tables.number(value)


def _to_file(claim: Result) -> dict[str, Any]:
    names = ("low", "high", *(["runs"] if claim.runs else []), "unit", "bar", "holds", "baseline", "date", "note")
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
