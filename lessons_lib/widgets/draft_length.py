"""Lesson 06's widget: what a draft length would do, predicted and counted, and who writes each token."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import mean

from matplotlib.figure import Figure

from lessons_lib.decoding.proposers.draft_length import Constant
from lessons_lib.decoding.replay import predicted_speed, replay_draft
from lessons_lib.figures.assisted import plot_length_and_text
from lessons_lib.measure.speculation import WidthCurve, walltime_factor
from lessons_lib.widgets.controls import Slider, show

GAMMAS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12)


@dataclass(frozen=True)
class Drafted:
    """A recorded greedy text and the draft's guess for every token but the first, which the prefill yields.

    tokens (n,), guesses (n - 1,): ids. Raises ValueError if there is not one guess for every later token.
    """

    tokens: Sequence[int]
    guesses: Sequence[int]

    def __post_init__(self):
        if len(self.tokens) < 2 or len(self.guesses) != len(self.tokens) - 1:
            raise ValueError(
                f"a text of at least two tokens and a guess for each but the first are needed, not "
                f"{len(self.tokens)} tokens and {len(self.guesses)} guesses"
            )

    @property
    def right(self) -> list[bool]:
        """For every token but the first: would the draft have guessed it?"""
        return [guess == token for guess, token in zip(self.guesses, self.tokens[1:], strict=True)]


def written(text: Drafted, gamma: int) -> list[tuple[list[int], str]]:
    """The text as drafting `gamma` tokens a step writes it: runs of (ids, "accepted" | "rejected" | "own").

    Of the guesses behind a rejected one nothing is known, and nothing is needed: the target does not look at them.
    ValueError for a gamma below 1.
    """
    runs = [([text.tokens[0]], "own")]
    for step in replay_draft(text.right, Constant(gamma)):
        first, last = step.length_before + 1, step.length_before + 1 + step.accepted
        runs += [(list(text.tokens[first:last]), "accepted")] if step.accepted else []
        runs += [([text.guesses[last - 1]], "rejected")] if step.accepted < step.proposed else []
        runs.append(([text.tokens[last]], "own"))
    return runs


def speeds(text: Drafted, c: float, v: WidthCurve) -> list[dict]:
    """Rows of plot_draft_length, of decoding alone: alpha's prediction, and the speed that counted forwards give."""
    alpha, rows = mean(text.right), []
    for gamma in GAMMAS:
        counted = predicted_speed(replay_draft(text.right, Constant(gamma)), v, c)
        rows.append({"gamma": gamma, "predicted": walltime_factor(alpha, gamma, c, v), "counted": counted})
    return rows


def draw_draft_length(
    texts: Mapping[str, Drafted], c: float, v: WidthCurve, decode: Callable, kind: str, gamma: int
) -> Figure:
    """The curve of one text with gamma marked, and the text coloured by who wrote it.

    KeyError for a kind that texts lack, ValueError for a gamma below 1.
    """
    text = texts[kind]
    pieces = [(decode(ids), who) for ids, who in written(text, gamma)]
    title = f"{kind}: {mean(text.right):.0%} of the guesses right"
    return plot_length_and_text(speeds(text, c, v), gamma, pieces, title)


def describe_draft_length(
    texts: Mapping[str, Drafted], c: float, v: WidthCurve, decode: Callable, kind: str, gamma: int
) -> str:
    """The figure in words; KeyError for a kind that texts lack, ValueError for a gamma that is not in GAMMAS."""
    text, runs = texts[kind], written(texts[kind], gamma)
    [row] = [row for row in speeds(text, c, v) if row["gamma"] == gamma]
    accepted = sum(len(ids) for ids, who in runs if who == "accepted")
    rejected = sum(who == "rejected" for _, who in runs)
    return (
        f"The {kind} text, {gamma} tokens drafted per step: of {len(text.tokens)} tokens {accepted} were drafted and "
        f"accepted, {len(text.tokens) - accepted} are the target's own, {rejected} guesses were rejected; speed over "
        f"plain, decoding alone, predicted {row['predicted']:.2f}, from counted forwards {row['counted']:.2f}."
    )


def show_draft_length(
    texts: Mapping[str, Drafted], c: float, v: WidthCurve, decode: Callable[[list[int]], str], gamma: int = 4
) -> None:
    """Sliders for the text and for gamma over plot_length_and_text.

    texts: name -> text, at least one. c, v: cost of a draft forward and width curve, as in measure.speculation. decode:
    ids -> text. gamma: where its slider starts, rounded down to one of GAMMAS.
    """
    start = max((g for g in GAMMAS if g <= gamma), default=GAMMAS[0])
    controls = {
        "kind": Slider("text", tuple(texts), next(iter(texts))),
        "gamma": Slider("drafted per step", GAMMAS, start, "tokens"),
    }
    show(controls, partial(draw_draft_length, texts, c, v, decode), partial(describe_draft_length, texts, c, v, decode))
