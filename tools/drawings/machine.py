"""Drawings of the work (lessons 00, 01, 06): memory against arithmetic, prefill against decode, and the one loop."""

from matplotlib.axes import Axes

from lessons_lib.course.figures import BLUE, GREEN, GREY, ORANGE, PURPLE, SMALL
from tools.drawings.shapes import arrow, box, canvas, drawing, grid, line, note


@drawing(
    "A machine as two numbers. Memory holds weights and KV cache and hands over B bytes per second; "
    "arithmetic does F floating-point operations per second. A calculation that moves few FLOPs per byte "
    "waits for memory, one that does many waits for arithmetic; the border, F divided by B, is the ridge "
    "point. Its time lies between the longer of the two, when they overlap, and their sum, when they do "
    "not."
)
def memory_and_arithmetic() -> Axes:
    """Bandwidth, FLOP/s, and the bracket in which the time of a calculation lies."""
    ax = canvas(30)
    box(ax, 2, 18, 18, 8, "memory\nweights, KV cache", BLUE)
    box(ax, 44, 18, 18, 8, "arithmetic\ncores, tensor units", ORANGE)
    arrow(ax, (20.5, 22), (43.5, 22), BLUE, width=4)
    note(ax, 32, 24.6, "B bytes per second")
    note(ax, 32, 19.4, "ridge point = F / B")
    note(ax, 53, 27.8, "F FLOP per second")
    for y, label, start in [(10, "overlapping", 20), (3.4, "one after the other", 38)]:
        note(ax, 18.5, y + 1.8, label, align="right", size=SMALL)
        box(ax, 20, y + (2 if start == 20 else 0.9), 18, 1.8, color=BLUE)
        box(ax, start, y + (0 if start == 20 else 0.9), 11, 1.8, color=ORANGE)
    note(ax, 39.5, 11.9, "time = max(memory, compute)", align="left", size=SMALL)
    note(ax, 20.5, 1.5, "time = memory + compute", align="left", size=SMALL)
    note(ax, 29, 14.8, "bytes / B", BLUE, size=SMALL)
    note(ax, 43.5, 7.4, "FLOP / F", ORANGE, size=SMALL)
    return ax


@drawing(
    "Prefill against decode: the same weights, different work. Prefill multiplies a matrix of T token "
    "rows by the weights: each weight is read once and used T times, so arithmetic is the limit if T is "
    "large. Decode multiplies a single row by the same weights: each weight is read and used once, about "
    "one FLOP per byte in 16 bits, so memory is the limit."
)
def prefill_and_decode() -> Axes:
    """A matrix-matrix product against a matrix-vector product."""
    ax = canvas(31)
    size = 1.8
    for top, rows, name, remark in [
        (26.5, 5, "prefill: T rows", "and used T times:\n≈ T FLOP per byte (16 bit),\nlarge T: compute-bound"),
        (12.2, 1, "decode: 1 row", "and used once:\n≈ 1 FLOP per byte (16 bit),\nmemory-bound"),
    ]:
        middle = top - 3 * size
        note(ax, 42, middle + 4.6, name, bold=True, align="left")
        tall = middle + rows * size / 2
        grid(ax, 1, tall, size, [[ORANGE] * 6] * rows)
        note(ax, 13.4, middle, "·", bold=True, size=16)
        grid(ax, 15, top, size, [[BLUE] * 6] * 6)
        note(ax, 27.4, middle, "=", bold=True)
        grid(ax, 29, tall, size, [[GREEN] * 6] * rows)
        note(ax, 42, middle - 1.2, "each weight is read once\n" + remark, align="left", size=SMALL)
    for x, label, shade in [(6.4, "tokens", ORANGE), (20.4, "weights", BLUE), (34.4, "outputs", GREEN)]:
        note(ax, x, 29, label, shade, size=SMALL)
    return ax


@drawing(
    "The one loop behind every technique, in four boxes. Propose: draft some next tokens cheaply. Verify:"
    " one forward pass of the target model checks all draft tokens at once. Accept: keep the draft tokens up to the "
    "first that the target would not have chosen, and put the target's own token there. Commit: text and "
    "cache keep what was accepted, nothing else; then all over again. In the example the draft tokens are on, "
    "the, red, mat; the target agrees with on and the, and has old instead of red: three tokens from one "
    "forward pass."
)
def one_loop() -> Axes:
    """Propose, verify, accept, commit, with one example."""
    ax = canvas(31)
    steps = [
        ("propose", "draft cheaply", GREEN, ["on", "the", "red", "mat"]),
        ("verify", "one forward pass", BLUE, ["on  ✓", "the  ✓", "old  ✗", "not needed"]),
        ("accept", "what agrees", ORANGE, ["on", "the", "old (target's)", ""]),
        ("commit", "text and cache", PURPLE, ["... sat on the old", "3 tokens,", "1 forward pass", ""]),
    ]
    for number, (name, remark, shade, words) in enumerate(steps):
        x = 0.8 + number * 16.2
        box(ax, x, 23, 13.8, 6.6, color=shade)
        note(ax, x + 6.9, 27.6, name, bold=True)
        note(ax, x + 6.9, 24.9, remark, size=SMALL)
        for place, word in enumerate(words):
            if word:
                note(ax, x + 6.9, 20 - place * 3.3, word, size=SMALL)
        if number < 3:
            arrow(ax, (x + 14, 26.3), (x + 16, 26.3))
    line(ax, [(56.3, 11), (56.3, 5), (7.7, 5)], GREY)
    arrow(ax, (7.7, 5), (7.7, 8.4), GREY)
    note(ax, 32, 2.4, "again, until the text ends; without a proposer: one token a forward pass", GREY, size=SMALL)
    return ax
