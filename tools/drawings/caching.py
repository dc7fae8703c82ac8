"""Drawings of the KV cache (lessons 02, 03): how it works, and the two ways to store it."""

from matplotlib.axes import Axes

from lessons_lib.course.figures import BLUE, GREEN, GREY, ORANGE, SMALL
from tools.drawings.shapes import arrow, canvas, cell, drawing, key, note

COMPUTED, REUSED = ORANGE, BLUE


@drawing(
    "Key-value caching, step by step, for a prompt of three tokens. Prefill computes queries, keys and "
    "values of tokens 1 to 3 and stores keys and values. Each decode step computes query, key and value "
    "of its one new token only, appends key and value, and reads all earlier ones from the cache: three "
    "after the prompt, then four, then five. Old queries are never needed again."
)
def kv_caching() -> Axes:
    """The q, k and v that each step computes, and those it reads from the cache."""
    ax = canvas(29)
    size = 2.6
    for number, name in enumerate(["queries", "keys", "values"]):
        note(ax, 11 + number * 17.6 + 3 * size, 27, name, bold=True)
    for step, cached in enumerate([0, 3, 4, 5]):
        top, end = 25.2 - step * 5.2, cached + (3 if step == 0 else 1)
        note(ax, 9.8, top - size / 2, "prefill" if step == 0 else f"decode {step}", align="right")
        for number in range(3):
            x = 11 + number * 17.6
            for token in range(6):
                fresh, old = cached <= token < end, token < cached and number > 0
                shade = COMPUTED if fresh else REUSED if old else None
                text = str(token + 1) if fresh or old else ""
                cell(ax, x + token * size, top - size, size, shade, text)
    key(ax, 2, [(COMPUTED, "computed in this step"), (REUSED, "read from the cache")])
    return ax


@drawing(
    "Two ways to store the cache over three decode steps. Dynamic: every step makes a larger buffer, 4, "
    "5, then 6 slots, and copies the old entries into it, so shapes and addresses change. Static: one "
    "buffer of 8 slots, enough for the whole text, is there from the start; each step writes one slot in place and a "
    "mask hides the empty ones, so that nothing changes shape and a compiled step can be used again."
)
def static_and_dynamic() -> Axes:
    """A growing buffer against one of fixed size."""
    ax = canvas(29)
    size = 2.7
    for number, (title, remark) in enumerate(
        [
            ("dynamic: grows", "a new shape each step:\nold entries copied, nothing to replay"),
            ("static: fixed size", "one shape, one address:\ncompile once, mask the empty slots"),
        ]
    ):
        x = 8 + number * 29
        note(ax, x + 4 * size, 27, title, bold=True)
        for step in range(3):
            top, filled = 24.5 - step * 5, 3 + step
            slots = 8 if number else filled + 1
            for slot in range(slots):
                shade = GREEN if number == 0 and slot < filled else REUSED if slot < filled else None
                cell(ax, x + slot * size, top - size, size, COMPUTED if slot == filled else shade)
            if number == 0 and step < 2:
                arrow(ax, (x + 2 * size, top - size), (x + 2 * size, top - 5), GREEN)
        note(ax, x + 4 * size, 6.6, remark, size=SMALL)
    for step in range(3):
        note(ax, 7, 24.5 - step * 5 - size / 2, f"step {step + 1}", GREY, "right", SMALL)
    entries = [(COMPUTED, "written"), (GREEN, "copied"), (REUSED, "stays where it is"), (None, "empty")]
    key(ax, 1.8, entries)
    return ax
