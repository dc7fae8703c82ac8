"""Figures and widget of the ladder: remaining quality, published ladders, and one of your own choice."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import hypot

from matplotlib.axes import Axes

from lessons_lib.course.figures import COLORS, CYCLE, INK, MARKERS, ORANGE, WIDTH, Row, axes, plot_waterfall, tint
from lessons_lib.course.widgets import Slider, show
from lessons_lib.decoding.generate import StepStats, tokens_per_pass
from lessons_lib.decoding.prediction import Recording, replay
from lessons_lib.decoding.proposers import Proposer
from lessons_lib.measure.cost import StepCost


def plot_quality(rows: Sequence[Row], tolerated: float) -> Axes:
    """Speed against loss of quality: perplexity above the reference's, in percent.

    rows: `configuration` (name), `speed` [tokens/s], `loss` (0.01: one percent more perplexity) and `bytes` held, drawn
    as the area of the dot. Configurations right of `tolerated` (as loss) do not count.
    """
    ax, most = axes(), max(row["bytes"] for row in rows)
    worst, fastest = 100 * max(tolerated, *(row["loss"] for row in rows)), max(row["speed"] for row in rows)
    left = 100 * min(0.0, *(row["loss"] for row in rows))
    ax.set(xlim=(left - 0.15 * worst, 1.5 * worst), ylim=(0, 1.25 * fastest))
    ax.axvspan(100 * tolerated, 2 * worst, color=tint(ORANGE), zorder=0)
    dots = ax.transData.transform([(100 * row["loss"], row["speed"]) for row in rows]) * 72 / ax.figure.dpi  # in points
    for i, row in enumerate(rows):
        color = COLORS["measured"] if row["loss"] <= tolerated else ORANGE
        ax.scatter(100 * row["loss"], row["speed"], 30 + 500 * row["bytes"] / most, color=color, alpha=0.7)
        # right of the dot, above, below or left of it: where the label is farthest from the other dots, up to 30 points
        others = [*dots[:i], *dots[i + 1 :]]
        room = {
            (x, y): min([30, *(hypot(*(dots[i] + (2 * x, y) - other)) for other in others)])
            for x, y in ((14, 0), (0, 14), (0, -14), (-14, 0))
        }
        x, y = max(room, key=room.get)
        aligned = {0: "center", 14: "left", -14: "right"}[x], {0: "center", 14: "bottom", -14: "top"}[y]
        ax.annotate(
            row["configuration"], (100 * row["loss"], row["speed"]), (x, y), textcoords="offset points", fontsize=9,
            color=INK, ha=aligned[0], va=aligned[1],
        )  # fmt: skip
    said = f"area: bytes held, {min(row['bytes'] for row in rows) / 1e6:,.0f} to {most / 1e6:,.0f} MB"
    ax.set_title(said, fontsize=9, loc="right")
    ax.set(xlabel="perplexity above the reference [%]", ylabel="tokens/s, plain decoding")
    return ax


def plot_published(ladders: Mapping[str, Sequence[tuple[str, float]]]) -> Axes:
    """Published ladders beside ours: speed over the first configuration, step by step, on a log axis.

    ladders: label -> (name, speed) in order. The first configuration is named in the legend, the others at their dots,
    once if several ladders share a step.
    """
    ax, dots = axes((WIDTH, 4.2)), {}
    for style, color, (label, configs) in zip(MARKERS, CYCLE, ladders.items(), strict=False):
        times = [speed / configs[0][1] for _, speed in configs]
        ax.plot(range(len(configs)), times, f"{style}-", color=color, label=f"{label}; 1 is {configs[0][0]}")
        for at, (name, _) in list(enumerate(configs))[1:]:
            dots.setdefault(at, {}).setdefault(name, []).append((times[at], color))
    for at, names in dots.items():
        highest = max(dot for found in names.values() for dot in found)
        for name, found in names.items():
            # lines rise, so label left above the highest dot, else right below; at the last step no line continues
            if highest in found:
                (value, color), aside, side = highest, (-5, 6), "right"
            else:
                (value, color), aside, side = min(found), (8, -3) if at == max(dots) else (4, -13), "left"
            ax.annotate(name, (at, value), aside, textcoords="offset points", fontsize=9, color=color, ha=side)
    ax.set(yscale="log", xlabel="steps up the ladder", ylabel="times the first configuration")
    ax.set_xticks(range(max(map(len, ladders.values()))))
    ticks = [tick for tick in (1, 2, 3, 5, 10, 20, 30, 50) if tick <= ax.get_ylim()[1]]
    ax.set_yticks(ticks, [f"{tick}" for tick in ticks])
    ax.set_yticks([], minor=True)
    ax.legend(loc="lower left", bbox_to_anchor=(0, 1), fontsize=9)
    return ax


GAMMAS = (0, 1, 2, 3, 4, 5, 6, 8, 10, 12)
Count = Callable[[Recording, int], Sequence[StepStats]]


@dataclass(frozen=True)
class Parts:
    """The building blocks of a ladder.

    engines: name -> cost of plain decoding; the first is the baseline. texts: kind of prompt -> recordings. counts:
    proposer -> function (recording, draft tokens per step) -> stats. draft: proposer -> seconds per draft token.
    """

    engines: Mapping[str, StepCost]
    texts: Mapping[str, Sequence[Recording]]
    counts: Mapping[str, Count]
    draft: Mapping[str, float]

    def traces(self, who: str, kind: str, gamma: int) -> list[Sequence[StepStats]]:
        """Stats of the texts with gamma draft tokens per step; 0: plain decoding."""
        count = self.counts[who] if gamma else lambda text, _: replay(text, Proposer())
        return [count(text, gamma) for text in self.texts[kind]]


def rows(parts: Parts, engine: str, who: str, kind: str, gamma: int) -> list[dict]:
    """The baseline engine, the chosen engine, and that with drafting: rows for plot_waterfall in tokens per second."""
    first, plain = next(iter(parts.engines)), parts.traces(who, kind, 0)
    chosen = parts.engines[engine]
    found = [{"configuration": first, "below": None, "speed": parts.engines[first].speed(*plain)}]
    if engine != first:
        found.append({"configuration": engine, "below": first, "speed": chosen.speed(*plain)})
    if gamma:
        drafting = replace(chosen, draft=parts.draft[who])
        speed = drafting.speed(*parts.traces(who, kind, gamma))
        found.append({"configuration": f"{engine} + {who}", "below": engine, "speed": speed})
    return found


def draw_ladder(parts: Parts, engine: str, who: str, kind: str, gamma: int) -> tuple[Axes, str]:
    """The chosen configurations; the title shows tokens per second and the factors behind it."""
    found, price = rows(parts, engine, who, kind, gamma), parts.engines[engine]
    tau = tokens_per_pass([step for stats in parts.traces(who, kind, gamma) for step in stats])
    wide = price.forward(0, 1 + gamma) / price.forward(0)
    speed, times = found[-1]["speed"], found[-1]["speed"] / found[0]["speed"]
    said = [
        f"{kind}: {speed:.0f} tokens/s predicted, {times:.2f} times {found[0]['configuration']}",
        f"{tau:.2f} tokens per forward pass, a step of {1 + gamma} rows costs {wide:.2f}",
    ]
    ax = plot_waterfall(found)
    ax.figure.legends[0].remove()
    ax.set_title("\n".join(said), fontsize=9)
    steps = ", then ".join(f"{row['configuration']} {row['speed']:.3g}" for row in found)
    return ax, f"A ladder in predicted tokens per second: {steps}. {'; '.join(said)}."


def show_ladder(parts: Parts, gamma: int) -> None:
    """Sliders for the engine, the proposer, the prompts and the draft tokens per step; shows the predicted speed.

    gamma: initial value, rounded down to one of GAMMAS.
    """
    engines, who, kinds = tuple(parts.engines), tuple(parts.counts), tuple(parts.texts)
    controls = {
        "engine": Slider("engine", engines, engines[-1]),
        "who": Slider("who drafts", who, who[0]),
        "kind": Slider("prompts", kinds, kinds[-1]),
        "gamma": Slider("draft tokens a step", GAMMAS, max(g for g in GAMMAS if g <= gamma)),
    }
    show(controls, partial(draw_ladder, parts))
