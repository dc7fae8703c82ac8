"""Proposers: one file per technique, each a way to guess what the target will say next (lessons 06-09).

prompt_lookup           copies what followed an earlier occurrence of the text's last tokens
draft_model             a small model drafts: how far says draft_length; its tokens are checked by shared_ids, drawn by
                        drawing, and kept in a tree that is growing
jacobi                  refines its own guess with the target's leftover predictions
lookahead               collects n-grams in a window beside the text and verifies those that fit
medusa                  heads on the target's own final state guess, a tree of them is verified
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from numbers import Integral

from torch import Tensor

from lessons_lib.decoding.draft_tree import NO_GUESSES, Proposal


@dataclass(frozen=True)
class Observation:
    """What a step brought to light, in the proposer's own numbering of its nodes.

    path: accepted nodes; tokens: what was committed, bonus last; node_logits: node -> (V,) for every node that was
    fed; scratch_logits (m, V), None without scratch; states: name -> (1 + m, D) of the last accepted node (or the
    anchor) followed by scratch, for the states that the proposer needs.
    """

    path: list[int]
    tokens: list[int]
    node_logits: dict[int, Tensor]
    scratch_logits: Tensor | None
    states: dict[int | str, Tensor] = field(default_factory=dict)


def whole(value) -> bool:
    """Whether a value is an integer, Python's or numpy's."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def check_integers(**sizes: int) -> None:
    """Raise TypeError for a size, given by its name, that is no integer."""
    for name, size in sizes.items():
        if not whole(size):
            raise TypeError(f"{name} must be an integer, not {size!r}")


class Proposer:
    """Proposes nothing: plain decoding. Techniques override what they need.

    needs: abilities the target must offer, such as "states". after: layers whose states `observe` wants.
    """

    needs: frozenset[str] = frozenset()
    after: tuple = ()

    def reset(self, target, prompt: Sequence[int]) -> None:
        """A new text begins with these ids, to be continued by `target`. ValueError for one it cannot guess for."""

    def propose(self, ids: Sequence[int], limit: int) -> Proposal:
        """ids: all committed tokens; guesses more than `limit` deep are of no use -> guesses for what follows."""
        return NO_GUESSES

    def observe(self, seen: Observation) -> None:
        """Called after every commit, the prefill's included."""
