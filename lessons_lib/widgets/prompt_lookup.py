"""Lesson 07's widget: n-gram and number of guesses, counted anew on recorded texts at every move."""

from collections.abc import Mapping, Sequence
from functools import partial

from matplotlib.axes import Axes

from lessons_lib.decoding.generate import tokens_per_forward
from lessons_lib.decoding.proposers.prompt_lookup import PromptLookup
from lessons_lib.decoding.replay import Recording, predicted_speed, replay
from lessons_lib.figures.lookup import plot_lookup
from lessons_lib.measure.speculation import WidthCurve
from lessons_lib.widgets.controls import Slider, show

NGRAMS = (1, 2, 3, 4, 5, 6)
GUESSES = (1, 2, 3, 5, 7, 10, 15, 20, 30)
RULES = ("transformers", "recent", "original")
Texts = Mapping[str, Sequence[Recording]]


def counts(texts: Texts, v: WidthCurve, **settings) -> list[dict]:
    """kind -> recordings, replayed with PromptLookup(**settings): rows of `kind`, `tokens_per_forward`, `speed`.

    Several recordings of a kind are taken together: all their tokens over all their forwards. No rule keeps silent
    unless the settings say so, so that rules differ in one thing alone. ValueError for settings that PromptLookup
    refuses.
    """
    rows, settings = [], {"min_hit_rate": 0.0} | settings
    for kind, recordings in texts.items():
        steps = [step for recording in recordings for step in replay(recording, PromptLookup(**settings))]
        rows.append({"kind": kind, "tokens_per_forward": tokens_per_forward(steps), "speed": predicted_speed(steps, v)})
    return rows


def draw_prompt_lookup(texts: Texts, v: WidthCurve, max_ngram: int, num_tokens: int, rule: str) -> Axes:
    """The counts as plot_lookup draws them; ValueError as `counts`, and without texts."""
    return plot_lookup(counts(texts, v, max_ngram=max_ngram, num_tokens=num_tokens, rule=rule))


def describe_prompt_lookup(texts: Texts, v: WidthCurve, max_ngram: int, num_tokens: int, rule: str) -> str:
    """The figure in words; ValueError as `counts`."""
    rows = counts(texts, v, max_ngram=max_ngram, num_tokens=num_tokens, rule=rule)
    said = (f"{row['kind']} {row['tokens_per_forward']:.2f} and {row['speed']:.2f}" for row in rows)
    return (
        f"Prompt lookup by n-grams of up to {max_ngram} tokens, {num_tokens} guesses, rule {rule}; tokens per "
        f"forward and predicted speed over plain: {', '.join(said)}."
    )


def show_prompt_lookup(texts: Texts, v: WidthCurve) -> None:
    """Sliders for the longest n-gram, the number of guesses and the rule, over counts by kind of prompt.

    texts: kind -> recordings; v: the measured width curve, for the predicted speed. ValueError without texts.
    """
    controls = {
        "max_ngram": Slider("longest n-gram", NGRAMS, 3, "tokens"),
        "num_tokens": Slider("guesses", GUESSES, 10),
        "rule": Slider("which occurrence", RULES, "transformers"),
    }
    show(controls, partial(draw_prompt_lookup, texts, v), partial(describe_prompt_lookup, texts, v))
