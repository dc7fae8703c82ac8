"""A display of several steps, one at a time: plain HTML and CSS, so it works on a stored page without a kernel.

    stepper(
        [
            Step("Prefill", [["queries", ("the", "computed"), ("cat", "computed")]], "Two tokens are computed."),
            Step("First new token", [["queries", ("the", "cached"), ("sat", "computed")]], "One is computed."),
        ],
        label="Two tokens of prompt, one new token",
        legend={"computed": ORANGE, "cached": BLUE},
    )

One radio button per step, and one that shows all steps; "Back" and "Next" are their labels. By keyboard: Tab reaches
the buttons, the arrow keys move between steps. In print, and where a viewer removes the style sheet, all steps stand
one below the other and the buttons are not there.
"""

import hashlib
import html
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lessons_lib.course.figures import INK, tint

__all__ = ["Step", "Stepper", "stepper"]

Cell = str | tuple[str, str]  # plain text, or (text, its key in the legend)
MADE: Counter[str] = Counter()  # displays of the same content in this process, so that their ids differ

# {i} is the display's id. `hidden` on the buttons counts only where this style sheet is missing.
CSS = """
#{i} {{ margin: .6em 0 1em; max-width: 100%; font-size: 1em; line-height: 1.4; }}
#{i} > input {{ display: inline-block !important; width: 1.15em; height: 1.15em; cursor: pointer;
  margin: .3em .45em .3em .1em; }}
#{i} > input:focus-visible {{ outline: 2px solid currentColor; outline-offset: 2px; }}
#{i} > .all {{ margin-left: .8em; cursor: pointer; }}
#{i} > .all::before {{ content: "show all"; }}
#{i} .step {{ border: 1px solid #8888; border-radius: 6px; padding: .5em .8em; margin: .3em 0; }}
#{i} .head {{ display: flex; flex-wrap: wrap; align-items: center; gap: .3em .6em; margin: 0 0 .4em; }}
#{i} .head strong {{ flex: 1 1 9em; }}
#{i} .turn {{ cursor: pointer; padding: .35em .8em; border: 1px solid currentColor; border-radius: 4px;
  user-select: none; }}
#{i} .back::before {{ content: "\\2039  Back"; }}
#{i} .next::before {{ content: "Next \\203A"; }}
#{i} span.turn {{ opacity: .35; cursor: default; }}
#{i} .scroll {{ overflow-x: auto; }}
#{i} table.cells {{ border-collapse: separate; border-spacing: 3px; margin: .2em 0; width: auto; font-size: .95em; }}
#{i} table.cells tr {{ background: none !important; }}
#{i} table.cells td {{ border: 0; padding: .25em .45em; min-width: 1.4em; text-align: center; white-space: nowrap;
  background: none; vertical-align: middle; }}
#{i} table.cells td:first-child:not(.box) {{ text-align: left; }}
#{i} table.cells td.box, #{i} .legend b {{ color: {ink}; border-radius: 3px; }}
#{i} .legend {{ font-size: .9em; margin: .2em 0; }}
#{i} .legend b {{ font-weight: normal; padding: .1em .5em; margin-right: .5em; white-space: nowrap; }}
#{i} pre {{ margin: .2em 0; overflow-x: auto; white-space: pre-wrap; background: none; }}
#{i} .said {{ margin: .4em 0 0; }}
@media screen {{
  #{i} > input:not([value="all"]):checked ~ .steps > .step {{ display: none; }}
{shown}
  #{i} > [value="all"]:checked ~ .steps .turn {{ display: none; }}
}}
@media print {{ #{i} > input, #{i} > .all, #{i} .turn {{ display: none !important; }} }}
"""


@dataclass(frozen=True)
class Step:
    """One step: a title, a body of rows of cells, and a short caption.

    A cell is text, or a pair (text, key of the legend) for a coloured one.
    """

    title: str
    body: Sequence[Sequence[Cell]]
    caption: str

    def html(self, legend: Mapping[str, str]) -> str:
        """The body and the caption as HTML."""
        rows = "".join(f"<tr>{''.join(_cell(cell, legend) for cell in row)}</tr>" for row in self.body)
        body = f'<table class="cells"><tbody>{rows}</tbody></table>'
        return f'<div class="scroll" tabindex="0">{body}</div><p class="said">{html.escape(self.caption)}</p>'

    def text(self) -> str:
        """The body and the caption as plain text."""
        rows = ["  ".join(cell if isinstance(cell, str) else cell[0] for cell in row) for row in self.body]
        return "\n".join([*rows, self.caption])


class Stepper:
    """What `stepper` returns: IPython shows it as HTML, or as text where there is no HTML."""

    def __init__(self, page: str, text: str):
        self.page, self.text = page, text

    def _repr_html_(self) -> str:
        return self.page

    def __repr__(self) -> str:
        return self.text


def stepper(steps: Sequence[Step], label: str, legend: Mapping[str, str]) -> Stepper:
    """A display that shows the steps one at a time, or all of them.

    label: what the display shows, for those who hear the page. legend: meaning -> colour of the coloured cells.
    """
    if not label.strip():
        raise ValueError("Say in `label` what the steps show, for readers who cannot see them.")
    bodies = [step.html(legend) for step in steps]
    name = _unique("".join([label, *(step.title for step in steps), *bodies]))
    last = len(steps)
    # one radio button per step, and one for all
    buttons = [
        _button(name, str(n), f"Step {n} of {last}: {step.title}", checked=n == 1) for n, step in enumerate(steps, 1)
    ]
    buttons += [
        _button(name, "all", "Show all steps"),
        f'<label class="all" for="{name}-all" aria-hidden="true"></label>',
    ]
    # the steps, each with labels of the buttons of its neighbours
    boxes = [
        f'<div class="step" id="{name}-step-{n}">'
        f'<div class="head"><strong>{n}/{last} {html.escape(step.title)}</strong>'
        f"{_turn(name, 'back', n - 1, last)}{_turn(name, 'next', n + 1, last)}</div>{body}</div>"
        for n, (step, body) in enumerate(zip(steps, bodies, strict=True), 1)
    ]
    shown = "\n".join(
        f'  #{name} > [value="{n}"]:checked ~ .steps > #{name}-step-{n} {{ display: block; }}'
        for n in range(1, last + 1)
    )
    keys = "".join(f'<b style="background:{tint(color, 0.35)}">{html.escape(key)}</b>' for key, color in legend.items())
    page = (
        f"<style>{CSS.format(i=name, ink=INK, shown=shown)}</style>"
        f'<div id="{name}" role="group" aria-label="{html.escape(label)}">'
        f"{''.join(buttons)}"
        f'<p class="legend">{keys}</p>'
        f'<div class="steps" aria-live="polite">{"".join(boxes)}</div></div>'
    )
    text = "\n\n".join(f"{n}/{last} {step.title}\n{step.text()}" for n, step in enumerate(steps, 1))
    return Stepper(page, f"{label}\n\n{text}")


def _cell(cell: Cell, legend: Mapping[str, str]) -> str:
    """A table cell, coloured if the legend explains it."""
    if isinstance(cell, str):
        return f"<td>{html.escape(cell)}</td>"
    text, key = cell
    said = html.escape(f"{text} ({key})")
    style = f"background:{tint(legend[key], 0.35)}"
    return f'<td class="box" style="{style}" title="{html.escape(key)}" aria-label="{said}">{html.escape(text)}</td>'


def _button(name: str, value: str, said: str, checked: bool = False) -> str:
    """A radio button; the group has the display's name, so that the arrow keys stay within it."""
    said, on = html.escape(said), " checked" if checked else ""
    what = f'id="{name}-{value}" name="{name}" value="{value}" aria-label="{said}" title="{said}"'
    # with the last attribute JupyterLab leaves the arrow keys alone, which otherwise move between cells
    return f'<input type="radio" hidden {what}{on} data-lm-suppress-shortcuts="true">'


def _turn(name: str, way: str, to: int, last: int) -> str:
    """The label "Back" or "Next"; at either end a text that does nothing, so that the other one stays in place."""
    if not 1 <= to <= last:
        return f'<span class="turn {way}" aria-hidden="true"></span>'
    return f'<label class="turn {way}" for="{name}-{to}" aria-hidden="true"></label>'


def _unique(content: str) -> str:
    """An id that depends on the content, so that a lesson stored twice is the same, and on how often it was shown."""
    digest = hashlib.sha256(content.encode()).hexdigest()[:10]
    MADE[digest] += 1
    return f"steps-{digest}-{MADE[digest]}"
