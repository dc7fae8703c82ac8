"""What a sweep leaves: a folder for each point, one table of all scorecard rows, and a plot for each lesson."""

from __future__ import annotations

import csv
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from lessons_lib.course.grid import Point
from lessons_lib.course.runner import shown
from lessons_lib.measure import scorecard, tables

Json = dict[str, Any]
COLUMNS = ("claim", "unit", "predicted", "measured", "ratio", "verdict", "limit", "peer", "seconds", "failure")
RAN = "ran.json"  # failure, seconds and machine, as the worker says them
READ = ("claim", "predicted", "measured", "ratio", "verdict")  # what a person is shown


def folder(build: Path, point: Point) -> Path:
    """Where a point's files lie."""
    return build / "points" / f"{point.lesson.name}-{point.key}"


def finished(build: Path, point: Point) -> bool:
    """Whether a point of this lesson, these parameters and this package went well before."""
    path = folder(build, point) / "point.json"
    return path.exists() and not json.loads(path.read_text(encoding="utf-8"))["failure"]


def keep(build: Path, point: Point, files: dict[str, bytes]) -> str:
    """Store what a worker gave back, point.json last, which says that all of it is there; what failed, if anything.

    files: by name, RAN among them, else KeyError.
    """
    place = folder(build, point)
    place.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (place / name).write_bytes(content)
    scores = scorecard.collect(place.glob("*.ipynb"))
    record = {"lesson": point.lesson.name, "parameters": point.taken} | json.loads(files[RAN])
    record["scores"] = [score.record() for score in scores]
    (place / "point.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return record["failure"]


def gather(points: list[Point], names: list[str], build: Path) -> int:
    """Write table and plots of these points, say where they are and what failed; the exit status.

    names: the grid's parameters, which become columns. FileNotFoundError for a point that was not kept.
    """
    records = [json.loads((folder(build, p) / "point.json").read_text(encoding="utf-8")) for p in points]
    rows = [row for record in records for row in rows_of(record, names)]
    pictures = draw(rows, names, build)
    write(records, rows, names, pictures, build)
    failed = [(point, record["failure"]) for point, record in zip(points, records, strict=True) if record["failure"]]
    print(f"\nRead {shown(build / 'results.md')}; the same as results.csv and results.json beside it.")
    print(f"{len(failed)} of {len(points)} points failed:" if failed else f"All {len(points)} points went well.")
    for point, failure in failed:
        print(f"  {point.name}: {failure}")
    return int(bool(failed))


def rows_of(record: Json, names: list[str]) -> list[Json]:
    """One row for each of a point's scores, with the grid's parameters; one without a score for a point without."""
    point = {name: record["parameters"].get(name) for name in names}
    point = {"lesson": record["lesson"]} | point | {name: record[name] for name in ("seconds", "failure")}
    return [point | {name: score[name] for name in COLUMNS if name in score} for score in record["scores"] or [{}]]


def draw(rows: list[Json], names: list[str], build: Path) -> dict[str, str]:
    """A plot for each lesson in which something can be drawn: its file's name -> what it shows, in words."""
    from lessons_lib.course.display import save
    from lessons_lib.course.sweep_figure import plot_sweep

    of_lesson, drawn = defaultdict(list), {}
    for row in rows:
        of_lesson[row["lesson"]].append(row)
    for lesson, group in of_lesson.items():
        figure = plot_sweep(group, names)
        if figure is not None:
            drawn[save(figure, build / f"{lesson}.png").name] = figure.get_label()
    return drawn


def write(records: list[Json], rows: list[Json], names: list[str], pictures: dict[str, str], build: Path) -> None:
    """results.json (points with all they hold), results.csv (a line for each score) and results.md (to read)."""
    (build / "results.json").write_text(json.dumps(records, indent=1) + "\n", encoding="utf-8")
    with (build / "results.csv").open("w", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, ["lesson", *names, *COLUMNS], restval="")
        table.writeheader()
        table.writerows(rows)
    cells = [[cell(row.get(name)) for name in ("lesson", *names, *READ, "failure")] for row in rows]
    machines = dict.fromkeys(record["machine"] for record in records if record["machine"])
    parts = [
        *(f"Measured on: {about}." for about in machines),
        *(f"![{alt}]({name})" for name, alt in pictures.items()),
    ]
    page = tables.markdown_page("Sweep", [*parts, (["lesson", *names, *READ, "failure"], cells)])
    (build / "results.md").write_text(page, encoding="utf-8")


def cell(value: Any) -> str:
    """A value of the table as text."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "-" if value in (None, "") else str(value)
    return tables.number(value)
