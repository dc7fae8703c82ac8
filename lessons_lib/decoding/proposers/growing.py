"""A tree of guesses in the making (lesson 06): what a draft adds to, one level after another."""

from dataclasses import dataclass, field

from torch import Tensor

from lessons_lib.decoding.proposal import ANCHOR


@dataclass
class Growing:
    """A tree of guesses that grows by a level per draft forward; equal siblings are one node from the start.

    depth: levels so far; level: the nodes of the deepest.
    """

    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    draws: dict[int, list[int]] = field(default_factory=dict)
    q: dict[int, Tensor] = field(default_factory=dict)
    level: list[int] = field(default_factory=lambda: [ANCHOR])
    depth: int = 0

    def grow(self, drawn: dict[int, list[int]]) -> None:
        """Add the next level. drawn: node of the deepest level -> tokens below it, in draw order."""
        first = len(self.tokens)
        for parent, tokens in drawn.items():
            new = list(dict.fromkeys(tokens))
            self.tokens += new
            self.parents += [parent] * len(new)
        self.draws |= drawn
        self.level, self.depth = list(range(first, len(self.tokens))), self.depth + 1
