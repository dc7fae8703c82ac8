"""Proposers: one file per technique, each a way to propose draft tokens (lessons 06-09, 13).

prompt_lookup           copies the tokens that followed an earlier occurrence of the last n-gram
draft_model             a small model drafts a chain or a tree
draft_length            how many tokens to draft per step: constant, by confidence, by predicted speed
jacobi                  refines its own draft tokens with the target's predictions from the last step
lookahead               collects n-grams with a Jacobi window and drafts those that start with the root
medusa                  heads on the target's last hidden state draft a tree
early_exit              the target's own first layers draft a chain, the others verify it
"""

from collections.abc import Sequence

from lessons_lib.decoding.draft_tree import DraftTree, ModelOutput


class Proposer:
    """Base class of proposers. It proposes nothing: plain decoding. A proposer drafts for one text at a time.

    needs: abilities that the target must offer, such as "states". after: layers whose hidden states `observe` receives.
    """

    needs: frozenset[str] = frozenset()
    after: tuple = ()

    def reset(self, target, prompt: Sequence[int]) -> None:
        """Start a new text with this prompt. Raises ValueError if the proposer cannot draft for `target`."""

    def propose(self, ids: Sequence[int], tree: DraftTree) -> None:
        """Add draft tokens to the empty tree, within its budget. ids: all committed tokens, the root last."""

    @staticmethod
    def propose_batch(
        proposers: Sequence["Proposer"], texts: Sequence[Sequence[int]], trees: Sequence[DraftTree]
    ) -> None:
        """Propose for several texts, each with its own proposer of this type. Override it to draft as a batch."""
        for proposer, ids, tree in zip(proposers, texts, trees, strict=True):
            proposer.propose(ids, tree)

    def observe(self, tree: DraftTree, path: list[int], tokens: list[int], output: ModelOutput) -> None:
        """Learn from a step. Called whenever tokens were committed, also after prefill.

        path: the accepted nodes, without a draft token that ended the text. tokens: the committed tokens, those of
        `path` and one more: the target's own token, or the draft token that ended the text. output: logits and hidden
        states; row 0 belongs to the root, row 1 + i to node i, and the rows of side tokens come last.
        """
