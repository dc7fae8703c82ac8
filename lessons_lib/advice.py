"""What a comparison finds: a row for each technique, and a recommendation.

Recommended is the fastest technique that keeps the tokens, if it is clearly faster. A technique's role: EXACT keeps the
tokens of plain decoding; OTHER chooses its own tokens, because it runs quantized weights or another model; a PEER is
another engine, which is shown and never recommended.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import nan
from typing import Any

from lessons_lib.decoding.probing import Divergence
from lessons_lib.measure import tables
from lessons_lib.measure.clock import Ratio

EXACT, OTHER, PEER = "exact", "other tokens", "peer"
GAIN = 0.05  # a technique with a smaller gain is not recommended
HEADINGS = (
    "after the prompt:", "passes", "tokens per pass", "tokens/s", "times as fast (95% interval)", "whole request",
    "same tokens", "memory",
)  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One technique over all prompts that were measured with it and with the first technique.

    passes: forward passes of all texts. tokens_per_pass: tau. Both, tokens_per_second and speedup are without prefill.
    speedup: over the first technique; None for itself. whole: the same with the prefill. same: for each prompt, whether
    the tokens are those of the first technique. divergence: the one with the largest logit gap. memory: bytes of the
    weights and of the longest text's KV cache; None where unknown. problem: why there is no measurement, else "". role:
    whether it keeps the tokens.
    """

    name: str
    passes: int = 0
    tokens_per_pass: float = nan
    tokens_per_second: float = nan
    speedup: Ratio | None = None
    whole: Ratio | None = None
    same: tuple[bool, ...] = ()
    divergence: Divergence | None = None
    memory: float | None = None
    problem: str = ""
    role: str = EXACT

    def cells(self) -> list[str]:
        """This row under HEADINGS."""
        if self.problem:
            return [self.name, *[""] * 5, self.problem, ""]
        counted = [f"{self.passes:,}", f"{self.tokens_per_pass:.2f}", f"{self.tokens_per_second:.3g}"]
        memory = "" if self.memory is None else f"{tables.number(self.memory / 1e6)} MB"
        whole = f"{self.whole.value:.2f}" if self.whole else ""
        return [self.name, *counted, self._speedup(), whole, self._same(), memory]

    def record(self) -> dict[str, Any]:
        """This row, ready for JSON; without the numbers of decoding if nothing followed the prefill."""
        said: dict[str, Any] = {"name": self.name}
        if self.problem:
            return said | {"problem": self.problem}
        names = ("passes", "tokens_per_pass", "tokens_per_second", "memory") if self.passes else ("passes", "memory")
        said |= {name: getattr(self, name) for name in names}
        for what, ratio in (("speedup", self.speedup), ("whole_request", self.whole)):
            if ratio:
                said[what] = {"value": ratio.value, "low": ratio.low, "high": ratio.high, "runs": ratio.runs}
        if self.speedup:
            said["same_tokens"] = list(self.same)
        if self.divergence:
            said["divergence"] = {"token": self.divergence.same + 1, "logit_gap": self.divergence.margin}
        return said

    def _speedup(self) -> str:
        if self.speedup is None:
            return ""
        value = f"{self.speedup.value:.2f}"
        return value if self.speedup.runs == 1 else f"{value} ({self.speedup.cell()})"

    def _same(self) -> str:
        if self.speedup is None:
            return ""
        if all(self.same):
            return "yes"
        count = "no" if len(self.same) == 1 else f"{sum(self.same)} of {len(self.same)}"
        if self.divergence is None:
            return count
        where = f"{count}: token {self.divergence.same + 1}, logit gap {self.divergence.margin:.2g}"
        return f"{where} (a near tie)" if self.divergence.near_tie else where


def compared(rows: Sequence[Row]) -> list[Row]:
    """Our techniques other than the first that were measured, the fastest first."""
    others = [row for row in rows if not row.problem and row.speedup and row.role != PEER]
    return sorted(others, key=lambda row: -row.speedup.value)


def recommended(rows: Sequence[Row]) -> Row | None:
    """The fastest technique that keeps the tokens, if it is worth using."""
    return next((row for row in compared(rows) if row.role == EXACT and worth_using(row)), None)


def recommendation(rows: Sequence[Row]) -> str:
    """The technique to use for this model on this machine, with the reason; then the speed of another engine."""
    if not rows:
        return "Nothing was measured yet."
    plain, others = rows[0], compared(rows)
    if not (plain.passes or plain.problem):
        return "Nothing can be recommended: every text ended with its first token; give other prompts."
    stay = "Decode plainly" if plain.name == "plain" else f"Stay with {plain.name}"
    if not others:
        broken = any(row.problem for row in rows)
        return f"{stay}: no other technique was measured with this model{'; the table says why' if broken else ''}."
    if all(row.speedup.runs == 1 for row in others):
        return "Too little was measured for a recommendation: one run on one prompt has no interval."
    exact = [row for row in others if row.role == EXACT]
    different = [row for row in others if row.role == OTHER and worth_using(row)]
    # What keeps the tokens comes first
    if best := recommended(rows):
        said = f"Use {best.name}: it {times(best)}, with the same greedy tokens{ties(best)}, because "
        fewer = best.tokens_per_pass > plain.tokens_per_pass
        yields = f"each forward pass yields {best.tokens_per_pass:.2f} tokens instead of {plain.tokens_per_pass:.3g}"
        said += yields if fewer else "its forward passes take less time"
    else:
        said = f"{stay}: no technique that keeps the tokens is clearly faster on these prompts"
        if exact:
            said += f", as the best of them, {exact[0].name}, yields {exact[0].tokens_per_pass:.2f} tokens per forward "
            said += f"pass and {times(exact[0])}"
    # Other tokens, if they come faster still
    if different and (best is None or different[0].speedup.value > best.speedup.value):
        other = different[0]
        said += f"; if other tokens are acceptable, {other.name} {times(other)}"
        if other.memory and plain.memory and other.memory < plain.memory:
            said += f", because a forward pass reads fewer bytes ({other.memory / 1e6:,.0f} MB in memory instead of "
            said += f"{plain.memory / 1e6:,.0f})"
    if theirs := next((row for row in rows if row.role == PEER and row.whole), None):
        said += f". {theirs.name} needs {1 / theirs.whole.value:.2f} times as long as {plain.name} for whole requests"
    return said + "."


def worth_using(row: Row) -> bool:
    """Whether a technique gains at least the share GAIN, and the interval of its speedup excludes 1."""
    return row.speedup.value >= 1 + GAIN and row.speedup.differs


def times(row: Row) -> str:
    """A speedup of decoding in words, with its interval, and that of whole requests."""
    said = f"decodes {row.speedup.value:.2f} times as fast ({row.speedup.words()})"
    return f"{said}, {row.whole.value:.2f} times with the prompt's pass" if row.whole else said


def ties(row: Row) -> str:
    """A note if some texts of a technique differ all the same: rounding decided between two nearly equal logits."""
    if all(row.same):
        return ""
    gap = f"a logit gap of at most {row.divergence.margin:.2g}" if row.divergence else "rounding"
    return f" up to rounding ({len(row.same) - sum(row.same)} of {len(row.same)} texts differ, by {gap})"
