"""The scorecard: what lessons predicted and measured, beside a peer, the published figure and the limit.

`show` publishes rows from a lesson, `collect` reads them from executed notebooks, `write` makes the page.
Standard library alone, so that the command line can use it before anything else is imported.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from lessons_lib.measure import claims, tables

MIME = "application/vnd.lessons-lib.scores+json"
WITHIN = 0.25  # of the prediction
HEADINGS = (
    "lesson",
    "claim",
    "predicted",
    "measured",
    "ratio",
    "peer in the run",
    "published",
    "limit",
    "verdict",
)


@dataclass(frozen=True)
class Score:
    """One row. Numbers are in `unit`; None or NaN: "not measured" (measured) or nothing to say (the others).

    limit: the physical limit (of a time: roofline.limit). peer: the official implementation
    (peer_name), measured in the same run. published: somebody's number, from `source`. TypeError for what is no number.
    """

    lesson: str
    claim: str
    unit: str
    predicted: float | None = None
    measured: float | None = None
    limit: float | None = None
    peer: float | None = None
    peer_name: str = ""
    published: float | None = None
    source: str = ""
    note: str = ""

    def __post_init__(self):
        for name in ("predicted", "measured", "limit", "peer", "published"):
            value = getattr(self, name)  # NumPy and torch scalars become floats, which JSON can hold
            object.__setattr__(self, name, None if value is None or math.isnan(value) else _plain(value))

    def record(self) -> dict:
        """All of it as JSON holds it, with what follows from it."""
        return asdict(self) | {"ratio": self.ratio, "verdict": self.verdict}

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


def show(scores: Sequence[Score]) -> None:
    """Publish rows from a lesson: in a notebook a table with the rows as data for `collect`, else text."""
    text = summary(scores) + "\n" + tables.text(HEADINGS, _cells(scores))
    ipython = sys.modules.get("IPython")  # not imported: then this is no notebook
    shell = ipython.get_ipython() if ipython else None
    if shell is None or not hasattr(shell, "kernel"):
        print(text)
        return
    page = tables.html(HEADINGS, _cells(scores)) + f"<p>{summary(scores)}</p>"
    rows = [asdict(score) for score in scores]
    ipython.display.display({"text/plain": text, "text/html": page, MIME: rows}, raw=True)


def collect(notebooks: Iterable[str | Path]) -> list[Score]:
    """Rows that `show` left in executed notebooks; a later row of the same lesson and claim replaces one.

    OSError for a notebook that cannot be read, ValueError for what is no JSON; TypeError as `from_row`.
    """
    found: dict[tuple[str, str], Score] = {}
    for path in notebooks:
        notebook = json.loads(Path(path).read_text(encoding="utf-8"))
        for row in _published(notebook):
            score = from_row(row)
            found[score.lesson, score.claim] = score
    return list(found.values())


def from_row(row: dict[str, Any]) -> Score:
    """A Score from one JSON row; fields of newer versions are ignored. TypeError without lesson, claim or unit."""
    known = {field.name for field in fields(Score)}
    return Score(**{name: value for name, value in row.items() if name in known})


def summary(scores: Sequence[Score]) -> str:
    """One line: how many claims, how many of them predicted within 25 %, how many not measured."""
    judged = [score for score in scores if score.verdict]
    good = sum(score.verdict == "within 25%" for score in judged)
    line = f"{len(scores)} claims: {good} of {len(judged)} predictions within 25%"
    missing = sum(score.measured is None for score in scores)
    return line + (f", {missing} not measured." if missing else ".")


def write(
    scores: Sequence[Score], folder: str | Path, machine: str = "", named: Sequence[claims.ClaimRow] = ()
) -> list[Path]:
    """Write scorecard.html (self-contained), .md and .json into folder; gives their paths.

    machine: a line saying where this was measured. named: rows of the claims file, for a second table. OSError for a
    folder that cannot be written.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    line, rows = summary(scores), [score.record() for score in scores]
    parts: list[str | tables.Table] = [
        line,
        *([machine] if machine else []),
        (HEADINGS, _cells(scores)),
        EXPLAINED,
    ]
    if named:
        parts += ["Claims of the benchmark:", (claims.HEADINGS, claims.cells(named))]
    content = {"summary": line, "machine": machine, "scores": rows, "claims": [asdict(row) for row in named]}
    texts = {
        "scorecard.html": tables.html_page("Scorecard", parts),
        "scorecard.md": tables.markdown_page("Scorecard", parts),
        "scorecard.json": json.dumps(content, indent=1) + "\n",
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [folder / name for name in texts]


EXPLAINED = (
    "Ratio: measured over predicted; within 25% means from 0.75 to 1.25. Peer: the official implementation, "
    "measured in the same run. Limit: what the method allows at best or, of a time, the hardware: all bytes at the "
    "read bandwidth, or all FLOPs at the best rate seen in any product. -: nothing to say."
)


def _cells(scores: Sequence[Score]) -> list[list[str]]:
    return [_row(score) for score in scores]


def _row(s: Score) -> list[str]:
    def amount(value: float | None, missing: str = "-") -> str:
        return missing if value is None else f"{tables.number(value)} {s.unit}".strip()

    def named(value: float | None, name: str) -> str:
        return amount(value) + (f" ({name})" if name and value is not None else "")

    claim = s.claim + (f" ({s.note})" if s.note else "")
    ratio = "-" if s.ratio is None else f"{s.ratio:.2f}"
    measured = amount(s.measured, "not measured")
    known = [named(s.peer, s.peer_name), named(s.published, s.source), amount(s.limit)]
    return [s.lesson, claim, amount(s.predicted), measured, ratio, *known, s.verdict or "-"]


def _published(notebook: dict[str, Any]) -> Iterable[dict[str, Any]]:
    for cell in notebook.get("cells", ()):
        for output in cell.get("outputs", ()):
            yield from output.get("data", {}).get(MIME, ())


def _plain(value: Any) -> int | float:
    return value if type(value) in (int, float) else float(value)
