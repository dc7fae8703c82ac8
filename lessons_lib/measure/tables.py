"""Tables as plain text, Markdown or HTML (every lesson). Every row has as many cells as there are headings."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

Cells = Sequence[Sequence[str]]
Table = tuple[Sequence[str], Cells]

# A half-transparent grey is legible on a light and on a dark page.
RULE = "border-bottom:1px solid rgba(128,128,128,.4);padding:.3em .7em;text-align:left;vertical-align:top"
PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>:root {{ color-scheme: light dark }} body {{ font: 15px/1.4 system-ui, sans-serif; margin: 1.5em auto;
max-width: 90em; padding: 0 1em }}</style>
</head>
<body>
<h1>{title}</h1>
{body}
</body>
</html>
"""


def number(value: float) -> str:
    """Format a number with three significant digits: 134479872 -> '134,479,872', 0.01234 -> '0.0123'."""
    if value == 0 or abs(value) >= 100 or float(value).is_integer():
        return f"{value:,.0f}"
    return f"{value:.3g}"


def text(headings: Sequence[str], rows: Cells) -> str:
    """Plain-text table with aligned columns."""
    lines = [list(headings), *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(headings))]
    padded = ([c.ljust(w) for c, w in zip(line, widths, strict=True)] for line in lines)
    return "\n".join("  ".join(line).rstrip() for line in padded)


def markdown(headings: Sequence[str], rows: Cells) -> str:
    """A GitHub table; pipes in cells are escaped."""
    lines = [list(headings), ["---"] * len(headings), *([c.replace("|", "\\|") for c in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def html(headings: Sequence[str], rows: Cells) -> str:
    """A table that scrolls sideways on a narrow screen. Styles are inline, since notebooks drop style sheets."""
    head = "".join(f'<th scope="col" style="{RULE}">{escape(h)}</th>' for h in headings)
    cells = ("".join(f'<td style="{RULE}">{escape(c)}</td>' for c in row) for row in rows)
    body = "".join(f"<tr>{row}</tr>\n" for row in cells)
    return (
        '<div style="overflow-x:auto"><table style="border-collapse:collapse;font-size:90%">\n'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody></table></div>"
    )


def write_page(path: Path, title: str, parts: Sequence[str | Table]) -> list[Path]:
    """Write a page of paragraphs and tables as self-contained HTML and as Markdown beside it; returns both paths."""
    body = "\n".join(f"<p>{escape(part)}</p>" if isinstance(part, str) else html(*part) for part in parts)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(PAGE.format(title=escape(title), body=body), encoding="utf-8")
    shown = [part if isinstance(part, str) else markdown(*part) for part in parts]
    path.with_suffix(".md").write_text("\n\n".join([f"# {title}", *shown]) + "\n", encoding="utf-8")
    return [path, path.with_suffix(".md")]
