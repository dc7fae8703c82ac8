"""Figures and widget of the prompt lookup lesson: copied tokens, and counts by kind of prompt."""

from collections.abc import Mapping, Sequence
from functools import partial

from matplotlib.axes import Axes

from lessons_lib.course.figures import (
    ABOVE,
    BLUE,
    COLORS,
    GOLD,
    GREEN,
    LIFTED,
    LINE,
    PALE,
    UNDERLINED,
    WIDTH,
    Producer,
    axes,
    draw_spans,
    lay_out,
)
from lessons_lib.course.widgets import Slider, show
from lessons_lib.decoding.generate import tokens_per_pass
from lessons_lib.decoding.prediction import Recording, replay
from lessons_lib.decoding.proposers.prompt_lookup import PromptLookup
from lessons_lib.measure.cost import StepCost, WidthCurve

PRODUCERS = {
    "model": Producer(PALE, "the model's own choice"),
    "prompt": Producer(GREEN, "copied from the prompt", UNDERLINED),
    "answer": Producer(GOLD, "copied from the answer", UNDERLINED),
}
NGRAMS = (1, 2, 3, 4, 5, 6)
NUM_TOKENS = (1, 2, 3, 5, 7, 10, 15, 20, 30)
RULES = ("transformers", "recent", "original")
Texts = Mapping[str, Sequence[Recording]]


def plot_spans(pieces: Sequence[tuple[str, str]]) -> Axes:
    """A text whose background shows the producer of each piece; copied pieces are underlined as well.

    pieces: (text, producer), in order, producer one of PRODUCERS.
    """
    spans = lay_out(pieces)
    lines = spans[-1][0] + 1
    ax = axes((WIDTH, LINE * (lines + 2)))
    ax.figure.set_layout_engine("none")
    ax.set_position((0.01, 0, 0.98, lines / (lines + 2)))
    return draw_spans(ax, spans, PRODUCERS)


def counts(texts: Texts, v: WidthCurve, **settings) -> list[dict]:
    """Replay recordings (by kind) with PromptLookup(**settings): rows of `kind`, `tokens_per_pass`, `speed`.

    Recordings of a kind are summed: all their tokens over all their forward passes. Drafting is not gated, so that
    rules differ in one thing only.
    """
    rows = []
    for kind, recordings in texts.items():
        lookups = [replay(recording, PromptLookup(min_hit_rate=0.0, **settings)) for recording in recordings]
        steps = [step for stats in lookups for step in stats]
        rows.append({"kind": kind, "tokens_per_pass": tokens_per_pass(steps), "speed": StepCost(v=v).speed(steps)})
    return rows


def draw_prompt_lookup(texts: Texts, v: WidthCurve, max_ngram: int, num_tokens: int, rule: str) -> tuple[Axes, str]:
    """Two bars per kind of prompt: tokens per forward pass, and the predicted speedup over plain (1 is dotted)."""
    rows = counts(texts, v, max_ngram=max_ngram, num_tokens=num_tokens, rule=rule)
    ax = axes()
    bars = (("tokens_per_pass", "tokens per forward pass", -0.2, GREEN), ("speed", "predicted speed", 0.2, BLUE))
    for key, label, shift, color in bars:
        at, values = [i + shift for i in range(len(rows))], [row[key] for row in rows]
        drawn = ax.barh(at, values, height=0.38, color=color, label=label)
        ax.bar_label(drawn, fmt="%.2f", padding=3, fontsize=9, bbox=LIFTED)
    ax.axvline(1, linestyle=":", color=COLORS["limit"])
    ax.set_yticks(range(len(rows)), [row["kind"] for row in rows])
    ax.invert_yaxis()
    longest = max(row[key] for row in rows for key, *_ in bars)
    ax.set(xlabel="times plain decoding (dotted: 1)", xlim=(0, 1.15 * longest))
    ax.legend(ncols=2, **ABOVE)
    said = (f"{row['kind']} {row['tokens_per_pass']:.2f} and {row['speed']:.2f}" for row in rows)
    return ax, (
        f"Prompt lookup by n-grams of up to {max_ngram} tokens, {num_tokens} draft tokens, rule {rule}; tokens per "
        f"forward pass and predicted speed over plain: {', '.join(said)}."
    )


def show_prompt_lookup(texts: Texts, v: WidthCurve) -> None:
    """Sliders for the longest n-gram, the number of draft tokens and the rule; shows counts by kind of prompt.

    texts: kind -> recordings; v: the measured width curve, for the predicted speed.
    """
    controls = {
        "max_ngram": Slider("longest n-gram", NGRAMS, 3, "tokens"),
        "num_tokens": Slider("draft tokens", NUM_TOKENS, 10),
        "rule": Slider("which occurrence", RULES, "transformers"),
    }
    show(controls, partial(draw_prompt_lookup, texts, v))
