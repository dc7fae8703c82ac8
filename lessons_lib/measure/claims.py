"""Named claims of all lessons: every number asked for or boasted of, with its bar, in bench/results/claims.json.

A claim below its bar stays, and says so. A partial run replaces only its own rows; a quick run never
overwrites a full one. Names keep their meaning once given.
"""

from __future__ import annotations

import datetime
import json
import math
import operator
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lessons_lib.measure import tables

if TYPE_CHECKING:
    from lessons_lib.measure.clock import Ratio

HEADINGS = ("claim", "value", "95% interval", "bar", "holds", "baseline", "date", "note")
COMPARE = {">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt}


@dataclass(frozen=True)
class ClaimRow:
    """One claim. value: median paired ratio; low, high: its bootstrap 95 % interval; holds: None if open.

    host: what it was measured on, where that is another machine than the file's.
    """

    claim: str
    value: float | None
    low: float | None
    high: float | None
    unit: str
    bar: str
    holds: bool | None
    baseline: str
    date: str
    note: str = ""
    quick: bool = False
    host: str = ""


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


def make_row(
    claim: str,
    measured: Ratio | float | None,
    bar: str = "",
    baseline: str = "",
    unit: str = "x",
    note: str = "",
) -> ClaimRow:
    """A row dated today. measured: a Ratio, or one number; None and NaN: not measured.

    baseline names target, dtype and state of what is compared with. ValueError for a bar that cannot be read.
    """
    value, low, high = _interval(measured)
    today = datetime.date.today().isoformat()
    return ClaimRow(claim, value, low, high, unit, bar, holds(value, bar), baseline, today, note)


def load(path: str | Path) -> list[ClaimRow]:
    """The rows of a claims file; none if there is no file.

    Raises ValueError for a file that is damaged, TypeError for rows of other fields.
    """
    return [ClaimRow(**row) for row in _read(Path(path)).get("rows", [])]


def update(
    path: str | Path, rows: Sequence[ClaimRow], quick: bool = False, host: Any = None, versions: Any = None
) -> list[ClaimRow]:
    """Write rows into a claims file, which is replaced in one move; gives all rows that it then holds.

    Other claims' rows stay as they are. With quick=True the rows are marked quick, and those whose claim has
    a full row already are dropped. host, versions: of this run; they become the file's if no row of another machine
    stays, else the new rows name their host. One without a value replaces none that has one. Errors as `load`.
    """
    path = Path(path)
    old = _read(path)
    kept = {row["claim"]: row for row in old.get("rows", [])}
    new = [asdict(row) | {"quick": quick} for row in rows]
    full = {name for name, row in kept.items() if not row.get("quick")}
    measured = {name for name, row in kept.items() if row["value"] is not None}
    new = [row for row in new if not (quick and row["claim"] in full)]
    new = [row for row in new if row["value"] is not None or row["claim"] not in measured]
    if new:
        named = set(kept) - {row["claim"] for row in new} and described(host) != described(old.get("host", ""))
        new = [row | {"host": described(host) if named else ""} for row in new]
        merged = kept | {row["claim"]: _short(row) for row in new}
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


def short_of_bar(rows: Sequence[ClaimRow]) -> list[ClaimRow]:
    """The rows that fall short of their bar, and those with a bar but without a value."""
    return [row for row in rows if row.bar and not row.holds]


def markdown(rows: Sequence[ClaimRow], columns: Sequence[str] = HEADINGS) -> str:
    """The claims as a Markdown table, of these columns. ValueError for one that is none of HEADINGS."""
    chosen = [HEADINGS.index(column) for column in columns]
    return tables.markdown(columns, [[line[i] for i in chosen] for line in cells(rows)])


def cells(rows: Sequence[ClaimRow]) -> list[list[str]]:
    """The table's cells under HEADINGS."""
    said = {True: "yes", False: "NO", None: "-"}
    lines = []
    for row in rows:
        shown = partial(_as_fine_as, row.bar)
        value = "not measured" if row.value is None else f"{shown(row.value)} {row.unit}".strip()
        interval = "-" if row.low is None else f"{shown(row.low)} to {shown(row.high)}"
        note = "; ".join(filter(None, [row.note, row.host and f"on {row.host}", "quick run" if row.quick else ""]))
        bar = [row.bar or "-", said[row.holds]]
        lines.append([row.claim, value, interval, *bar, row.baseline, row.date, note])
    return lines


def _as_fine_as(bar: str, value: float) -> str:
    """One decimal more than a bar of three or more has ('<= 1.005' -> '1.0018'), which decide; else three digits."""
    decimals = len(bar.partition(".")[2])
    return f"{value:.{decimals + 1}f}" if decimals > 2 else tables.number(value)


def _interval(measured: Any) -> tuple[float | None, float | None, float | None]:
    if measured is None:
        return None, None, None
    if hasattr(measured, "low"):
        return measured.value, measured.low, measured.high
    value = float(measured)
    return (None if math.isnan(value) else value), None, None


def _read(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is damaged ({error}); restore or delete it.") from error


def _write(path: Path, content: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    partial.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    os.replace(partial, path)


def _short(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if value or name not in ("quick", "host")}
