"""A tree of guesses in the making (lesson 06): what a draft adds to, one level after another."""

from dataclasses import dataclass, field

from lessons_lib.decoding.proposal import ANCHOR, Tree


@dataclass
class Growing(Tree):
    """A Tree that grows by a level per draft forward. depth: levels so far; level: the nodes of the deepest."""

    level: list[int] = field(default_factory=lambda: [ANCHOR])
    depth: int = 0

    def grow(self, drawn: dict[int, list[int]]) -> None:
        """Add the next level. drawn: node of the deepest level -> tokens below it, in draw order."""
        first = len(self.tokens)
        for parent, tokens in drawn.items():
            for token in tokens:
                self.add(token, parent)
        self.draws |= drawn
        self.level, self.depth = list(range(first, len(self.tokens))), self.depth + 1
