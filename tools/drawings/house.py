"""The drawing of the library: the path of a prompt and of a request through the code, with file names."""

from matplotlib.axes import Axes

from lessons_lib.course.figures import BLUE, GREEN, GREY, ORANGE, PURPLE, SMALL
from tools.drawings.shapes import arrow, box, canvas, drawing, line, note

LEFT, APART, WIDE, HIGH = 1.0, 16.0, 13.6, 4.6  # boxes: position of the first, distance to the next, and size

# name, purpose, file
GENERATE = [
    ("load", "name or folder\n-> a model", "../models/hub.py"),
    ("model.target", "what runs its\nforward passes", "targets/"),
    ("sequence", "prompt -> ids,\nwith a cache", "sequence.py"),
    ("generate", "repeats the step\nuntil the text ends", "generate.py"),
]
STEP = [
    ("propose", "draft tokens\ninto a draft tree", "proposers/"),
    ("run", "one forward pass\nover all sequences", "targets/"),
    ("verify", "acceptance rule:\npath, new tokens", "sampling.py"),
    ("commit", "ids grow; the cache\nforgets the rest", "../caches/"),
]
SERVING = [
    ("workload", "lengths, arrivals\n-> requests", "workload.py"),
    ("schedule", "who runs next, with\nhow many tokens", "scheduler.py"),
    ("run", "the step on a model\n(or simulator.py)", "engine.py"),
    ("commit", "times are noted,\nblocks are freed", "scheduler.py"),
]


@drawing(
    "The way through the code. Generate: load makes a model of a name, model.target what runs its forward passes; a "
    "sequence holds the prompt's ids and a cache; generate repeats the step until the text ends. Step: a proposer adds "
    "draft tokens to a draft tree, the target runs one forward pass over all sequences, the acceptance rule gives path "
    "and new tokens, commit keeps them and the cache drops rejected ones. Serving: a workload makes requests, the "
    "scheduler says who runs next, engine or simulator runs them, blocks are freed. In green the files."
)
def the_house() -> Axes:
    """From a model's name to the last token, and from a workload to its latencies."""
    ax = canvas(45.5)
    row_of_boxes(ax, 43, "decoding/", BLUE, GENERATE)
    row_of_boxes(ax, 27, "a step", ORANGE, STEP)
    row_of_boxes(ax, 11, "serving/", PURPLE, SERVING)
    again(ax, 27, 0, "until the text ends")
    again(ax, 11, 1, "until all requests are done")
    return ax


def row_of_boxes(ax: Axes, top: float, title: str, shade: str, boxes: list[tuple[str, str, str]]) -> None:
    """A row of boxes connected by arrows."""
    note(ax, LEFT, top + 1.4, title, shade, align="left", bold=True)
    for column, (name, what, where) in enumerate(boxes):
        x = LEFT + column * APART
        box(ax, x, top - HIGH, WIDE, HIGH, name, shade)
        note(ax, x + WIDE / 2, top - HIGH - 2.2, what, size=SMALL)
        note(ax, x + WIDE / 2, top - HIGH - 5.2, where, GREEN, size=SMALL)
        if column:
            arrow(ax, (x - APART + WIDE + 0.2, top - HIGH / 2), (x - 0.2, top - HIGH / 2))


def again(ax: Axes, top: float, column: int, until: str) -> None:
    """A line above a row of boxes, from the last one back to this column."""
    end, start, back = LEFT + 3 * APART + WIDE / 2, LEFT + column * APART + 0.7 * WIDE, top + 2
    line(ax, [(end, top), (end, back), (start, back)], GREY)
    arrow(ax, (start, back), (start, top + 0.1), GREY)
    note(ax, (start + end) / 2, back + 1.1, until, GREY, size=SMALL)
