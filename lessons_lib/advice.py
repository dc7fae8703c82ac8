"""The recommendation of a comparison: the fastest technique that keeps the tokens, if it is clearly faster, and why.

A technique's role: EXACT keeps the tokens of plain decoding; OTHER chooses its own tokens, because it runs quantized
weights or another model; a PEER is another engine, which is shown and never recommended.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lessons_lib.comparison import Row

EXACT, OTHER, PEER = "exact", "other tokens", "peer"
GAIN = 0.05  # a technique with a smaller gain is not recommended


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
