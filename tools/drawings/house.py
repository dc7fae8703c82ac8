"""The drawing of the house: the way of a prompt and of a request through the code, and where new things go."""

from matplotlib.axes import Axes

from lessons_lib.course.figures import BLUE, GREEN, GREY, ORANGE, PURPLE, SMALL
from tools.drawings.shapes import arrow, box, canvas, drawing, line, note

LEFT, APART, WIDE, HIGH = 1.0, 16.0, 13.6, 4.6  # of the boxes: the first, the next, and their size

ONCE = [
    ("load", "a name or folder\n-> LanguageModel", "+ model source:\nmodels/"),
    ("model.target", "kind and weights\n-> a Target", "+ weight format:\nquantization/"),
    ("new_sequence", "text -> ids, checked\n-> Sequence", "+ cache:\ncaches/"),
    ("generate", "repeats the step,\nshows new tokens", "+ lesson:\nnotebooks/"),
]
STEP = [
    ("draft", "ids -> DraftTree\n-> Block", "+ technique:\nproposers/"),
    ("target.run", "Blocks of all texts\n-> Scores, logits", "+ target:\ntargets/"),
    ("verify", "tree and Scores\n-> path, tokens", "+ acceptance rule:\ndecoding/"),
    ("commit", "ids, cache.keep,\nproposer.observe", ""),
]
SERVING = [
    ("workload", "lengths, arrivals\n-> Sequences", "+ lengths, arrivals:\nserving/"),
    ("schedule", "Sequences -> Plan:\nwho feeds how much", "+ policy:\nserving/"),
    ("run the plan", "by a cost model,\nor by step", "+ cost model:\nserving/"),
    ("commit", "blocks freed; Log\n-> metrics", ""),
]


@drawing(
    "The way through the code. Generate: load makes a LanguageModel of a name, model.target a Target, new_sequence a "
    "Sequence of a prompt; generate repeats the step. Step, until the text ends: draft makes a Block of the proposer's "
    "tree, target.run Scores for all Blocks, verify a path and tokens, commit keeps them. Serving, until all is done: "
    "a workload makes Sequences, schedule a Plan, which a cost model or step runs, commit frees blocks. In green where "
    "new things go: model source, weight format, cache, lesson, technique, target, rule, lengths, policy, cost."
)
def the_house() -> Axes:
    """From a name to the last token, and from a workload to its metrics."""
    ax = canvas(52)
    row_of_boxes(ax, 49.5, "generate", BLUE, ONCE)
    row_of_boxes(ax, 32.5, "step", ORANGE, STEP)
    row_of_boxes(ax, 15, "serving", PURPLE, SERVING)
    again(ax, 32.5, 0, "until the text ends")
    again(ax, 15, 1, "until all requests are done")
    return ax


def row_of_boxes(ax: Axes, top: float, title: str, shade: str, boxes: list[tuple[str, str, str]]) -> None:
    """Boxes with arrows between them: (name, what becomes of what, where a new one goes)."""
    note(ax, LEFT, top + 1.4, title, shade, align="left", bold=True)
    for column, (name, what, new) in enumerate(boxes):
        x = LEFT + column * APART
        box(ax, x, top - HIGH, WIDE, HIGH, name, shade)
        note(ax, x + WIDE / 2, top - HIGH - 2.2, what, size=SMALL)
        note(ax, x + WIDE / 2, top - HIGH - 6, new, GREEN, size=SMALL)
        if column:
            arrow(ax, (x - APART + WIDE + 0.2, top - HIGH / 2), (x - 0.2, top - HIGH / 2))


def again(ax: Axes, top: float, column: int, until: str) -> None:
    """A line above a row of boxes, from the last back to that column."""
    end, start, back = LEFT + 3 * APART + WIDE / 2, LEFT + column * APART + 0.7 * WIDE, top + 2
    line(ax, [(end, top), (end, back), (start, back)], GREY)
    arrow(ax, (start, back), (start, top + 0.1), GREY)
    note(ax, (start + end) / 2, back + 1.1, until, GREY, size=SMALL)
