"""Assisted (speculative) decoding (lesson 06): a small draft model with the target's tokenizer drafts a chain or tree.

The draft model keeps a KV cache of its own. After drafting, this holds all draft tokens but those of the deepest
level, which were not fed. After verification it is cut back to the accepted tokens.

Sources: Leviathan et al. 2022 (arXiv 2211.17192), Chen et al. 2023 (arXiv 2302.01318).
"""

from collections.abc import Sequence
from itertools import accumulate
from operator import mul

import torch
from torch import Tensor
from torch.nn.functional import pad

from lessons_lib.decoding.checks import check_integers
from lessons_lib.decoding.draft_tree import MODES, ROOT, DraftTree, ModelInput, ModelOutput, plain_input, tree_mask
from lessons_lib.decoding.proposers import Proposer
from lessons_lib.decoding.proposers.draft_length import Constant, DraftLength
from lessons_lib.decoding.sampling import Sampling, sample_children, top_tokens
from lessons_lib.decoding.targets import as_target
from lessons_lib.models.tokenizers import shared_ids


class DraftModel(Proposer):
    """Drafts with a small model.

    draft: a Target, a LanguageModel or a causal LM, with the same tokenizer as the target.
    gamma: tokens drafted per step (transformers: num_assistant_tokens), for a tree its depth; or a schedule from
    draft_length.
    children: number of children of each node, level by level, then 1: () is a chain, (3, 2) has six branches.
    mode: "unsampled" takes the draft model's top tokens. "iid" and "without_replacement" sample from its distribution q
    after `sampling`. All modes are lossless under Greedy and Sampling; sampled drafts pay off under Sampling.
    generator: randomness of the draft. Share the one passed to `generate`, or seed it differently: with equal seeds,
    draft tokens and the random numbers that verify them would be correlated.
    """

    def __init__(
        self,
        draft,
        gamma: int | DraftLength = 5,
        mode: str = "unsampled",
        children: Sequence[int] = (),
        sampling: Sampling | None = None,
        generator: torch.Generator | None = None,
    ):
        if mode not in MODES:
            raise ValueError(f"mode {mode!r} is unknown; one of {', '.join(MODES)}")
        if mode == "unsampled" and sampling:
            raise ValueError('mode "unsampled" samples nothing; choose mode "iid" or leave `sampling` out')
        for count in children:
            check_integers(children=count)
        if any(count < 1 for count in children):
            raise ValueError(f"children must be at least 1 at every depth, not {tuple(children)}")
        self.draft, self.mode, self.children = as_target(draft), mode, tuple(children)
        self.length = gamma if isinstance(gamma, DraftLength) else Constant(gamma)
        self.sampling, self.generator = sampling or Sampling(), generator
        self.target = None

    def reset(self, target, prompt: Sequence[int]) -> None:
        """Start a new text with an empty draft cache. Raises ValueError for a target with another tokenizer."""
        if target is not self.target:
            self.target, self.known = target, shared_ids(target, self.draft)
        self.cache = None  # first, so that a compiled draft reuses its buffers, with the CUDA graph that writes there
        self.cache = self.draft.new_cache(len(prompt))
        self.length.reset()

    @torch.no_grad()
    def propose(self, ids: Sequence[int], tree: DraftTree) -> None:
        """Add a tree of gamma levels, with one draft forward pass per level.

        Raises Unsupported for branches if the draft model's target cannot run them.
        """
        # Limit the depth by schedule, budget and the draft model's context; the last level is not fed
        gamma = min(self.length.next(), tree.max_depth, self.draft.context - len(ids) + 1)
        if gamma < 1 or not all(token < self.known for token in ids[self.cache.length() :]):
            return  # no draft either if the target generated a padding id, which the draft model does not know
        self.committed = len(ids)
        # Children per node, level by level; a chain if the draft cache does not support the largest possible tree
        counts = [*self.children, *[1] * gamma][:gamma]
        nodes = sum(accumulate(counts, mul))
        if nodes > gamma and not self.cache.branches(len(ids) + nodes):
            counts = [1] * gamma
        # Draft level by level, until the schedule stops or every branch ends with EOS
        level = [ROOT]  # nodes that get children next
        while level and tree.draft_calls < gamma and self._has_room(tree, level):
            (output,) = self.draft.run([self._input(ids, tree, level)])
            if level == [ROOT]:
                self.cache_most = self.cache.most  # of this step: that of a streaming cache rises with every token
            level, confidence = self._grow(tree, level, self._shared(output.logits), counts[tree.draft_calls])
            tree.draft_calls += 1
            if not self.length.goes_on(confidence) or all(tree.tokens[node] in self.target.eos for node in level):
                break

    def observe(self, tree: DraftTree, path: list[int], tokens: list[int], output: ModelOutput) -> None:
        """Drop rejected draft tokens from the draft cache and report the result to the schedule."""
        if not tree.tokens:
            return
        # Keep the entries of accepted nodes that were fed: the deepest level was not
        first = self.committed  # cache entry of node 0
        fed = self.cache.length() - first
        self.cache.keep(first, [first + node for node in path if node < fed])
        self.length.learn(tree, path, tokens)

    def _input(self, ids: Sequence[int], tree: DraftTree, level: Sequence[int]) -> ModelInput:
        """Input of the next draft pass: first the committed tokens that are not in the draft cache, then one level."""
        if level == [ROOT]:
            return plain_input(ids[self.cache.length() :], self.cache)
        offset = len(ids) - 1 + tree.depth - self.cache.length()
        # In a tree with branches, a node attends to its ancestors, which are already in the cache
        mask = None if tree.is_chain else tree_mask(1, tree, len(ids) - 1)[1 + level[0] : 1 + len(tree.tokens)]
        return ModelInput([tree.tokens[node] for node in level], [offset] * len(level), mask, self.cache, len(level))

    def _grow(self, tree: DraftTree, level: Sequence[int], logits: Tensor, count: int) -> tuple[list[int], float]:
        """Add `count` children to every node of the level. logits (nodes, V) -> new nodes, the highest q among them."""
        q, confidence, first = self.sampling.probabilities(logits), 0.0, len(tree.tokens)
        for node, scores, row in zip(level, logits, q, strict=True):
            if node != ROOT and tree.tokens[node] in self.target.eos:
                continue  # no tokens after EOS
            if self.mode == "unsampled":
                made = [tree.add(node, token) for token in self._best(scores, row, count)]
            else:
                made = sample_children(tree, node, row, count, self.mode, self.generator)
            tokens = [tree.tokens[new] for new in made if new is not None]
            confidence = max(confidence, float(row[tokens].max())) if tokens else confidence
        return list(range(first, len(tree.tokens))), confidence

    def _best(self, scores: Tensor, q: Tensor, count: int) -> list[int]:
        """The `count` top tokens, or all of q > 0 if these are fewer."""
        if count == 1:
            return top_tokens(scores[None])  # breaks ties as Greedy does
        return scores.topk(min(count, int(q.count_nonzero()))).indices.tolist()

    def _shared(self, logits: Tensor) -> Tensor:
        """Convert draft logits (n, draft V) to the target's vocabulary (n, target V), with -inf for unused ids.

        q is then normalised over the shared ids. The target's logits are not changed, padding ids included, since its
        own output is the reference. Mode "unsampled" needs no q, so the logits are only cut to the shared ids.
        """
        known, padding = logits[:, : self.known], self.target.vocab_size - self.known
        return known if self.mode == "unsampled" or not padding else pad(known, (0, padding), value=float("-inf"))

    def _has_room(self, tree: DraftTree, level: Sequence[int]) -> bool:
        """Whether the target's budget allows another level, and the draft cache has room for this one."""
        if not any(tree.fits(node) for node in level):
            return False
        return level == [ROOT] or self.cache_most is None or self.cache.length() + len(level) <= self.cache_most
