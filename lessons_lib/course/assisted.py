"""Figures and widget of the lesson on assisted decoding: when drafting pays, and which tokens were drafted."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import mean

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lessons_lib.course.figures import (
    ABOVE,
    BLUE,
    COLORS,
    CYCLE,
    FONT_SIZE,
    GREY,
    LINE,
    PALE,
    STRUCK,
    UNDERLINED,
    WIDTH,
    Producer,
    Row,
    axes,
    draw_spans,
    lay_out,
)
from lessons_lib.course.widgets import Slider, show
from lessons_lib.decoding.prediction import replay_draft
from lessons_lib.decoding.proposers.draft_length import Constant
from lessons_lib.measure.cost import StepCost, WidthCurve, walltime_factor

WRITERS = {
    "accepted": Producer(COLORS["accepted"], "drafted and accepted", UNDERLINED),
    "rejected": Producer(COLORS["rejected"], "drafted, rejected", STRUCK),
    "own": Producer(PALE, "the target's own"),
}
GAMMAS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12)


def plot_overlap(p: Sequence[float], q: Sequence[float], names: Sequence[str]) -> Axes:
    """Why sampling with a draft keeps p: min(p, q) is accepted, and the residual fills up the rest of p.

    p, q: probabilities of the tokens `names` under target and draft; q is shown as an outline.
    """
    ax, at = axes((WIDTH, 3.0)), range(len(names))
    kept = [min(a, b) for a, b in zip(p, q, strict=True)]
    residual = [a - k for a, k in zip(p, kept, strict=True)]
    ax.bar(at, kept, 0.6, color=COLORS["accepted"], label="min(p, q): drafted and accepted")
    ax.bar(at, residual, 0.6, bottom=kept, color=BLUE, label="(p - q)+: sampled after a rejection")
    ax.bar(at, q, 0.72, facecolor="none", edgecolor=COLORS["rejected"], linewidth=1.6, linestyle="--", label="q")
    ax.set_xticks(at, names)
    ax.set(ylabel="probability", ylim=(0, None))
    ax.legend(title="full height of a bar: p", ncols=2, **ABOVE)
    return ax


def plot_draft_length(ax: Axes, rows: Iterable[Row], chosen: int) -> None:
    """Speedup over plain decoding against draft length, `chosen` marked. rows: `gamma`, `predicted` and `counted`."""
    gammas, predicted, counted = ([row[key] for row in rows] for key in ("gamma", "predicted", "counted"))
    ax.plot(gammas, predicted, "--", color=COLORS["predicted"], label="predicted from alpha")
    ax.plot(gammas, counted, "s", markersize=5, color=COLORS["draft"], label="from counted passes")
    ax.axvline(chosen, color=COLORS["accepted"], alpha=0.35, linewidth=6)
    ax.axhline(1, linestyle=":", color=COLORS["limit"])
    ax.set(xlabel="tokens drafted per step (gamma)", ylabel="decoding alone [times plain]", ylim=(0, None))
    ax.legend(ncols=2, **ABOVE)


def plot_pays(curves: Mapping[str, Sequence[tuple[float, float]]], points: Iterable[tuple[str, float, float]]) -> Axes:
    """The acceptance rate needed for a gain, against the speed of the draft relative to its target.

    Above its line a draft pays. curves: label -> [(c, alpha)]; points with alpha > 1 are left out, because no draft
    gains there. points: (label, c, alpha) of real drafts.
    """
    ax, height = axes(), -1.0
    for number, (label, curve) in enumerate(curves.items()):
        known = [(1 / c, alpha) for c, alpha in curve if alpha <= 1]
        speeds, needed = [speed for speed, _ in known], [alpha for _, alpha in known]
        ax.plot(speeds, needed, ("-", "--", ":")[number % 3], color=CYCLE[number], label=label)
    for number, (label, c, alpha) in enumerate(sorted(points, key=lambda point: point[2])):
        height = max(alpha, height + 0.07)  # stack the labels of equally good drafts
        said = "reached by real drafts" if number == 0 else None  # one legend entry for all
        ax.plot(1 / c, alpha, "o", color=COLORS["draft"], label=said)
        thin = {"arrowstyle": "-", "color": GREY, "linewidth": 0.6}
        ax.annotate(label, (1 / c, alpha), (1.25 / c, height), arrowprops=thin, fontsize=FONT_SIZE, va="center")
    ax.axvline(3, linestyle=":", color=COLORS["limit"])  # a draft three times as fast as its target
    ax.set_xscale("log")
    ticks = [1, 2, 3, 5, 10, 20, 50, 100]
    ax.set_xticks(ticks, map(str, ticks))
    ax.minorticks_off()
    ax.set(xlabel="draft forward passes in the time of one target forward pass (1/c)", ylabel="acceptance", ylim=(0, 1))
    ax.legend(ncols=2, **ABOVE)
    return ax


@dataclass(frozen=True)
class Drafted:
    """A recorded greedy text, tokens (n,), and the draft token for every position but the first, draft (n - 1,)."""

    tokens: Sequence[int]
    draft: Sequence[int]

    @property
    def right(self) -> list[bool]:
        """Whether the draft predicts each token, except the first (which the prefill yields)."""
        return [one == token for one, token in zip(self.draft, self.tokens[1:], strict=True)]


def written(text: Drafted, gamma: int) -> list[tuple[list[int], str]]:
    """The text as decoded with `gamma` draft tokens per step: runs of (ids, "accepted" | "rejected" | "own").

    Draft tokens after a rejected one are unknown. They are not needed, since the target does not check them.
    """
    runs = [([text.tokens[0]], "own")]
    for step in replay_draft(text.right, Constant(gamma)):
        first, last = step.length_before + 1, step.length_before + 1 + step.accepted
        runs += [(list(text.tokens[first:last]), "accepted")] if step.accepted else []
        runs += [([text.draft[last - 1]], "rejected")] if step.accepted < step.proposed else []
        runs.append(([text.tokens[last]], "own"))
    return runs


def speeds(text: Drafted, c: float, v: WidthCurve) -> list[dict]:
    """A row for each gamma, decoding only: predicted from alpha, and computed from counted forward passes."""
    alpha, rows = mean(text.right), []
    for gamma in GAMMAS:
        counted = StepCost(v=v, draft=c).speed(replay_draft(text.right, Constant(gamma)))
        rows.append({"gamma": gamma, "predicted": walltime_factor(alpha, gamma, c, v), "counted": counted})
    return rows


def draw_draft_length(
    texts: Mapping[str, Drafted], c: float, v: WidthCurve, decode: Callable, kind: str, gamma: int
) -> tuple[Figure, str]:
    """The curve of one text with gamma marked, and below it the text, coloured by origin (draft or target)."""
    text = texts[kind]
    rows, runs = speeds(text, c, v), written(text, gamma)
    # a rejected newline is drawn as an arrow, because the text does not break there
    pieces = [(decode(ids).replace("\n", "↵") if who == "rejected" else decode(ids), who) for ids, who in runs]
    spans = lay_out(pieces)
    lines, top = spans[-1][0] + 1, 3.4  # height of the curve in inches
    tall = top + LINE * (lines + 2)
    figure = plt.figure(figsize=(WIDTH, tall))
    above = figure.add_axes((0.11, 1 - (top - 0.75) / tall, 0.87, (top - 1.35) / tall))
    plot_draft_length(above, rows, gamma)
    title = f"{kind}: {mean(text.right):.0%} of the draft tokens right"
    above.set_title(title, fontsize=11, pad=26)  # in points: leaves room for the legend
    draw_spans(figure.add_axes((0.01, 0.01, 0.98, LINE * lines / tall)), spans, WRITERS)
    [row] = [row for row in rows if row["gamma"] == gamma]
    accepted = sum(len(ids) for ids, who in runs if who == "accepted")
    rejected = sum(who == "rejected" for _, who in runs)
    return figure, (
        f"The {kind} text, {gamma} tokens drafted per step: of {len(text.tokens)} tokens {accepted} were drafted and "
        f"accepted, {len(text.tokens) - accepted} are the target's own, {rejected} draft tokens were rejected; speed "
        f"over plain, decoding alone, predicted {row['predicted']:.2f}, from counted forward passes "
        f"{row['counted']:.2f}."
    )


def show_draft_length(
    texts: Mapping[str, Drafted], c: float, v: WidthCurve, decode: Callable[[list[int]], str], gamma: int
) -> None:
    """Sliders for the text and gamma; shows the speedup and the coloured text.

    c, v: cost of a draft pass and width curve, as in measure.cost. decode: ids -> text. gamma: initial value, rounded
    down to one of GAMMAS.
    """
    start = max(g for g in GAMMAS if g <= gamma)
    controls = {
        "kind": Slider("text", tuple(texts), next(iter(texts))),
        "gamma": Slider("drafted per step", GAMMAS, start, "tokens"),
    }
    show(controls, partial(draw_draft_length, texts, c, v, decode))
