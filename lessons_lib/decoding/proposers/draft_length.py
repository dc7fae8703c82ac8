"""How many tokens to draft per step (lesson 06): gamma as a constant, by rules of thumb, or by predicted speed.

A schedule may stop drafting *behind* a token, judging by the tokens so far: that token is verified all the same.
Throwing away a token that was drawn would bias sampling. Rules and defaults as in transformers, the oracle in
tests/peers/test_assisted.py; predicted speed by Leviathan et al. 2022 (arXiv 2211.17192).
"""

import math
from dataclasses import dataclass
from functools import cache

from lessons_lib.decoding.proposers import check_integers
from lessons_lib.measure.cost import WidthCurve, best_gamma

CARRIED = 8.0  # guesses that an assumed alpha weighs, or an earlier text's


class DraftLength:
    """Says for every step how deep to draft, and learns from what became of it. Belongs to one proposer."""

    def reset(self) -> None:
        """A new text begins."""

    def next(self) -> int:
        """gamma, tokens of the step that begins, asked once in it; 0: do not speculate. NotImplementedError here."""
        raise NotImplementedError

    def goes_on(self, confidence: float) -> bool:
        """Whether to draft further behind a token of this probability in the draft's eyes."""
        return True

    def observe(self, depth: int, examined: int, accepted: int) -> None:
        """`depth` tokens were drafted, the target looked at `examined` of them and accepted `accepted`.

        Both may be more than `depth` where drafts cost nothing: prompt lookup compares its copy with the text as far as
        that goes, whether the target was given the tokens or not.
        """


@dataclass
class Constant(DraftLength):
    """gamma tokens at every step; ValueError below 1."""

    gamma: int = 5

    def __post_init__(self):
        _at_least_one("gamma", self.gamma)

    def next(self) -> int:
        return self.gamma


@dataclass
class Confidence(Constant):
    """Up to gamma tokens, but none behind one that the draft itself gives less than `threshold`.

    ValueError for a gamma below 1.
    """

    gamma: int = 20
    threshold: float = 0.4

    def goes_on(self, confidence: float) -> bool:
        return confidence >= self.threshold


@dataclass
class Heuristic(Constant):
    """Two more after a step in which all gamma tokens were accepted, one less after one with a rejected token, never
    below one. Neither where fewer than gamma were drafted and all accepted.

    The length reached carries over to the next text. ValueError for a gamma below 1.
    """

    def observe(self, depth: int, examined: int, accepted: int) -> None:
        if accepted < depth:
            self.gamma = max(1, self.gamma - 1)
        elif depth >= self.gamma:  # else there was no room for gamma tokens, or nothing to draft them from
            self.gamma += 2


class Adaptive(DraftLength):
    """The gamma with the highest predicted speed E[N] / (gamma c + v(gamma + 1)), 0 included, for chains.

    c, v: a draft forward and a w-row target forward pass over a one-row one (measure.cost). alpha: acceptance
    assumed at first, with the weight of eight guesses; then accepted over examined guesses, where `decay` is what
    a step's count still weighs one step later. The next text begins with the estimate reached, which weighs no more
    than eight guesses either: texts differ, and its own guesses soon count for more.
    It stops drafting when 0 is best for an alpha one standard error higher, too, for a stop brings no evidence; and
    then it still drafts one token every `probe_every` steps. None: evidence comes all the same (prompt lookup judges
    guesses that nobody saw), so the best gamma is taken as it is. ValueError for settings out of range.
    """

    def __init__(
        self,
        c: float,
        v: WidthCurve = None,
        most: int = 16,
        alpha: float = 0.7,
        decay: float = 0.98,
        probe_every: int | None = 16,
    ):
        if c < 0 or not 0 <= alpha <= 1 or not 0 < decay <= 1:
            raise ValueError(f"c >= 0, 0 <= alpha <= 1 and 0 < decay <= 1 are needed, not {c}, {alpha} and {decay}")
        _at_least_one("most", most)
        if probe_every is not None:
            _at_least_one("probe_every", probe_every)
        self.decay, self.probe_every = decay, probe_every
        self._best = cache(lambda percent: best_gamma(percent / 100, c, v, most))  # asked at every step
        self._accepted, self._examined, self._idle = CARRIED * alpha, CARRIED, 0

    @property
    def alpha(self) -> float:
        """alpha-hat: the estimated probability that an examined guess is accepted."""
        return self._accepted / self._examined

    @property
    def hoped(self) -> float:
        """alpha-hat and its standard error, that of as many guesses as the evidence weighs, 1 at most."""
        return min(1.0, self.alpha + math.sqrt(self.alpha * (1 - self.alpha) / self._examined))

    def reset(self) -> None:
        share = min(1.0, CARRIED / self._examined)
        self._accepted, self._examined = share * self._accepted, share * self._examined

    def next(self) -> int:
        gamma = self._best(round(100 * self.alpha))
        if self.probe_every is None:
            return gamma
        if not gamma and self._best(round(100 * self.hoped)):
            gamma = 1
        self._idle = 0 if gamma else self._idle + 1
        if self._idle < self.probe_every:
            return gamma
        self._idle = 0
        return 1

    def observe(self, depth: int, examined: int, accepted: int) -> None:
        self._accepted = self.decay * self._accepted + accepted
        self._examined = self.decay * self._examined + examined


def _at_least_one(name: str, value: int) -> None:
    check_integers(**{name: value})
    if value < 1:
        raise ValueError(f"{name} must be at least 1, not {value}")
