"""How many tokens to draft per step (lessons 06 and 13): gamma as a constant, by confidence, or by predicted speed.

A schedule may stop drafting only *after* a token, which is then still verified: dropping a token that was already
sampled would bias the output. Rules and defaults are those of transformers, the oracle in
tests/peers/test_assisted.py. Predicted speed: Leviathan et al. 2022 (arXiv 2211.17192).
"""

import math
from dataclasses import dataclass
from functools import cache

from lessons_lib.decoding.checks import at_least_one
from lessons_lib.decoding.draft_tree import ROOT, DraftTree
from lessons_lib.measure.cost import WidthCurve, best_gamma, walltime_factor

CARRIED = 8.0  # weight, in checked draft tokens, of the initial alpha or of the estimate from earlier texts


class DraftLength:
    """A schedule: chooses gamma for every step and learns from the result. Each proposer needs its own.

    In transformers: num_assistant_tokens_schedule.
    """

    def reset(self) -> None:
        """Start a new text."""

    def next(self) -> int:
        """gamma for the next step; 0 means no draft. Call it once per step."""
        raise NotImplementedError

    def goes_on(self, confidence: float) -> bool:
        """Whether to continue drafting after a token. confidence: its probability q in the draft's distribution."""
        return True

    def observe(self, depth: int, checked: int, accepted: int) -> None:
        """Learn from a step: `depth` tokens were drafted, `checked` of them checked and `accepted` accepted.

        With prompt lookup, `checked` and `accepted` may exceed `depth`: it also compares tokens that it copied but
        did not propose with the committed tokens.
        """

    def learn(self, tree: DraftTree, path: list[int], tokens: list[int]) -> None:
        """`observe` the result of a verified tree. Arguments as in `Proposer.observe`."""
        # Where a draft token ends the text, `path` stops before it, but it was accepted
        ended = tree.child(path[-1] if path else ROOT, tokens[-1]) is not None
        self.observe(tree.depth, min(len(tokens), tree.depth), len(path) + ended)


@dataclass
class Constant(DraftLength):
    """gamma tokens at every step."""

    gamma: int = 5

    def __post_init__(self):
        at_least_one("gamma", self.gamma)

    def next(self) -> int:
        return self.gamma


@dataclass
class Confidence(Constant):
    """Up to gamma tokens; stops after a token whose probability in the draft's distribution is below `threshold`.

    threshold: assistant_confidence_threshold in transformers.
    """

    gamma: int = 20
    threshold: float = 0.4

    def goes_on(self, confidence: float) -> bool:
        return confidence >= self.threshold


class Adaptive(DraftLength):
    """Chooses the gamma (0 included) with the highest predicted speed E[N] / (gamma c + v(gamma + 1)), for chains.

    c: cost of one draft forward pass; v: width curve; both in units of a one-token target pass (measure.cost). most:
    upper limit of gamma. alpha starts at PRIOR, with the weight of 8 checked draft tokens. Afterwards alpha = accepted
    / checked, and every step multiplies earlier counts by DECAY. A new text starts with the estimate so far, with a
    weight of at most 8 tokens, so that its own drafts soon count for more.

    Drafting stops only if gamma = 0 is best even for an alpha one standard error higher, because without drafts there
    is no new evidence. Even then it drafts one token every `probe_every` steps. probe_every=None always takes the best
    gamma: for prompt lookup, which gets evidence also from tokens that it did not propose.
    """

    PRIOR = 0.7  # published for small draft models: 0.5 to 0.9
    DECAY = 0.98  # remembers about 50 steps: enough tokens for an average, few enough to follow the text

    def __init__(self, c: float, v: WidthCurve = None, most: int = 16, probe_every: int | None = 16):
        if c < 0:
            raise ValueError(f"c must be at least 0, not {c}")
        at_least_one("most", most)
        if probe_every is not None:
            at_least_one("probe_every", probe_every)
        self.probe_every = probe_every
        self._best = cache(lambda percent: best_gamma(percent / 100, c, v, most))  # called at every step
        self._speed = cache(lambda percent: walltime_factor(percent / 100, self._best(percent), c, v))
        self._accepted, self._examined, self._idle = CARRIED * self.PRIOR, CARRIED, 0

    @property
    def alpha(self) -> float:
        """alpha-hat: the estimated probability that a checked draft token is accepted."""
        return self._accepted / self._examined

    @property
    def expected_alpha(self) -> float:
        """alpha-hat plus one standard error, at most 1. The sample size is the decayed count of checked tokens."""
        return min(1.0, self.alpha + math.sqrt(self.alpha * (1 - self.alpha) / self._examined))

    @property
    def expected_speed(self) -> float:
        """Predicted speedup over plain decoding for `expected_alpha`, at the gamma that is best for it."""
        return self._speed(round(100 * self.expected_alpha))

    def reset(self) -> None:
        share = min(1.0, CARRIED / self._examined)
        self._accepted, self._examined = share * self._accepted, share * self._examined

    def next(self) -> int:
        # The best gamma for the estimate
        gamma = self._best(round(100 * self.alpha))
        if self.probe_every is None:
            return gamma
        # Keep drafting one token while alpha may be higher than estimated
        if not gamma and self._best(round(100 * self.expected_alpha)):
            gamma = 1
        # Probe with one token after probe_every steps without a draft
        self._idle = 0 if gamma else self._idle + 1
        if self._idle < self.probe_every:
            return gamma
        self._idle = 0
        return 1

    def observe(self, depth: int, checked: int, accepted: int) -> None:
        self._accepted = self.DECAY * self._accepted + accepted
        self._examined = self.DECAY * self._examined + checked
