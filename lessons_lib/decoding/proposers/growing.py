"""A tree of guesses in the making (lesson 06): what a draft adds to, one level after another."""

from dataclasses import dataclass, field

from torch import Tensor

from lessons_lib.decoding.proposal import ANCHOR


@dataclass
class Growing:
    """Fields of a Proposal, of which the loop makes the Tree, growing by a level per draft forward.

    depth: levels so far; level: the nodes of the deepest. Equal siblings are one node: the draft reads them once.
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
            different = list(dict.fromkeys(tokens))
            self.tokens += different
            self.parents += [parent] * len(different)
        self.draws |= drawn
        self.level, self.depth = list(range(first, len(self.tokens))), self.depth + 1
