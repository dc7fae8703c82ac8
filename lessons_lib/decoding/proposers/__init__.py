"""Proposers: one file per technique, each a way to guess what the target will say next (lessons 06-09).

prompt_lookup           copies what followed an earlier occurrence of the text's last tokens
draft_model             a small model drafts a chain or a tree, as deep as draft_length says
jacobi                  refines its own guess with the target's leftover predictions
lookahead               collects n-grams in a window beside the text and verifies those that fit
medusa                  heads on the target's own final state guess, a tree of them is verified
"""

from collections.abc import Sequence
from numbers import Integral

from lessons_lib.decoding.draft_tree import DraftTree, ModelOutput


def whole(value) -> bool:
    """Whether a value is an integer, Python's or numpy's."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def check_integers(**sizes: int) -> None:
    """Raise TypeError for a size, given by its name, that is no integer."""
    for name, size in sizes.items():
        if not whole(size):
            raise TypeError(f"{name} must be an integer, not {size!r}")


class Proposer:
    """Proposes nothing: plain decoding. Techniques override what they need. One proposer serves one text at a time.

    needs: abilities the target must offer, such as "states". after: layers whose hidden states `observe` wants.
    """

    needs: frozenset[str] = frozenset()
    after: tuple = ()

    def reset(self, target, prompt: Sequence[int]) -> None:
        """A new text begins with these ids, to be continued by `target`. ValueError for one it cannot draft for."""

    def propose(self, ids: Sequence[int], tree: DraftTree) -> None:
        """Add draft tokens for what follows ids, all committed tokens, to the empty tree, within its budget."""

    @staticmethod
    def propose_batch(
        proposers: Sequence["Proposer"], texts: Sequence[Sequence[int]], trees: Sequence[DraftTree]
    ) -> None:
        """Propose for several texts, each with a proposer of this kind; override it to draft all in one pass."""
        for proposer, ids, tree in zip(proposers, texts, trees, strict=True):
            proposer.propose(ids, tree)

    def observe(self, tree: DraftTree, path: list[int], tokens: list[int], scores: ModelOutput) -> None:
        """Called after every commit, the prefill's included.

        path: accepted nodes; tokens: what was committed, the target's own token last; scores: row 0 of its logits and
        hidden states is the root's, row 1 + i node i's, side tokens follow.
        """
