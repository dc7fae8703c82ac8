"""Lesson 11's widget: a ladder of one's own choice, from what each part was measured to cost and to gain."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from matplotlib.axes import Axes

from lessons_lib.decoding.generate import Step, tokens_per_forward
from lessons_lib.decoding.ladder import Price, Rung
from lessons_lib.decoding.proposers import Proposer
from lessons_lib.decoding.replay import Recording, replay
from lessons_lib.figures.ladder import plot_waterfall
from lessons_lib.widgets.controls import Slider, show

GUESSES = (0, 1, 2, 3, 4, 5, 6, 8, 10, 12)
Count = Callable[[Recording, int], Sequence[Step]]


@dataclass(frozen=True)
class Parts:
    """What a ladder is put together from.

    engines: name -> price of plain decoding, the first is what the others are compared with. texts: kind of prompt ->
    recordings. counts: who guesses -> (recording, guesses a step) -> its trace. guess: who guesses -> seconds a guess.
    """

    engines: Mapping[str, Price]
    texts: Mapping[str, Sequence[Recording]]
    counts: Mapping[str, Count]
    guess: Mapping[str, float]

    def traces(self, who: str, kind: str, gamma: int) -> list[Sequence[Step]]:
        """Of the texts, with so many guesses a step; 0: plain decoding. KeyError for a name that the parts lack."""
        count = self.counts[who] if gamma else lambda text, _: replay(text, Proposer())
        return [count(text, gamma) for text in self.texts[kind]]


def rows(parts: Parts, engine: str, who: str, kind: str, gamma: int) -> list[dict]:
    """The first engine, the chosen one, and that one with guesses: rows of plot_waterfall, in tokens per second.

    KeyError for a name that the parts lack.
    """
    first, plain = next(iter(parts.engines)), parts.traces(who, kind, 0)
    chosen = parts.engines[engine]
    rungs = [Rung(first, None, parts.engines[first])]
    rungs += [Rung(engine, first, chosen)] * (engine != first)
    found = [{"rung": rung.name, "below": rung.below, "speed": rung.speed(plain)} for rung in rungs]
    if gamma:
        guessing = Rung(f"{engine} + {who}", engine, replace(chosen, guess=parts.guess[who]))
        expected = guessing.speed(parts.traces(who, kind, gamma))
        found.append({"rung": guessing.name, "below": engine, "speed": expected})
    return found


def headline(parts: Parts, engine: str, who: str, kind: str, gamma: int) -> str:
    """Tokens per second and what they are made of; KeyError as `rows`."""
    found, price = rows(parts, engine, who, kind, gamma), parts.engines[engine]
    tau = tokens_per_forward([step for trace in parts.traces(who, kind, gamma) for step in trace])
    wide = price.forward(0, 1 + gamma) / price.forward(0)
    speed, times = found[-1]["speed"], found[-1]["speed"] / found[0]["speed"]
    said = f"{kind}: {speed:.0f} tokens/s predicted, {times:.2f} times {found[0]['rung']}"
    return f"{said}; {tau:.2f} tokens per forward, a step of {1 + gamma} rows costs {wide:.2f}"


def draw_ladder(parts: Parts, engine: str, who: str, kind: str, gamma: int) -> Axes:
    """The chosen rungs under their headline; KeyError as `rows`."""
    ax = plot_waterfall(rows(parts, engine, who, kind, gamma))
    ax.figure.legends[0].remove()
    ax.set_title(headline(parts, engine, who, kind, gamma).replace("; ", "\n"), fontsize=9)
    return ax


def describe_ladder(parts: Parts, engine: str, who: str, kind: str, gamma: int) -> str:
    """The figure in words; KeyError as `rows`."""
    steps = ", then ".join(f"{row['rung']} {row['speed']:.3g}" for row in rows(parts, engine, who, kind, gamma))
    return f"A ladder in predicted tokens per second: {steps}. {headline(parts, engine, who, kind, gamma)}."


def show_ladder(parts: Parts, gamma: int = 4) -> None:
    """Sliders for the engine, who guesses, the kind of prompt and the guesses of a step, over the predicted speed.

    gamma: where the last starts, rounded down to one of GUESSES; ValueError below 0.
    """
    engines, who, kinds = tuple(parts.engines), tuple(parts.counts), tuple(parts.texts)
    controls = {
        "engine": Slider("engine", engines, engines[-1]),
        "who": Slider("who guesses", who, who[0]),
        "kind": Slider("prompts", kinds, kinds[-1]),
        "gamma": Slider("guesses a step", GUESSES, max(g for g in GUESSES if g <= gamma)),
    }
    show(controls, partial(draw_ladder, parts), partial(describe_ladder, parts))
