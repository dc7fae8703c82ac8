"""Self-check (lesson 06): tests whether a transformers model verifies draft chains and draft trees correctly.

Verification is only correct if draft tokens get the same logits as the same tokens fed as plain text. Models differ in
how they use positions, masks and attention windows, and no config describes this reliably. So before a model's first
pass over a chain or a tree, the same random tokens are run in both layouts, and the logits must agree.

The check of chains takes 9 short forward passes, that of branches 7 more, once per network, attention implementation,
device and dtype. Branches are also checked at the length of the coming text, in a second cache (3 passes), and again
for longer texts. Near an attention window the critical length is bracketed by bisection. The stats do not count these
passes, but their time is part of the step that triggers the check.
"""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from lessons_lib.decoding.draft_tree import ROOT, DraftTree, ModelInput, SideTokens, make_input, plain_input, tree_mask
from lessons_lib.decoding.targets.decoder import Unsupported
from lessons_lib.models.device import out_of_memory

DEPTH, WIDTH = 4, 16  # tokens compared at the end of a long text; number of other branches


@dataclass
class Answers:
    """Results for a network. chains, trees: whether it computes them correctly; None before the check.

    good: largest cache length for which branches were correct; bad: smallest for which they were wrong.
    """

    chains: bool | None = None
    trees: bool | None = None
    good: int = 0
    bad: float = math.inf


# network -> (attention implementation, device, dtype) -> Answers. Weak keys: a network can still be freed.
KNOWN: WeakKeyDictionary = WeakKeyDictionary()


class SelfCheck:
    """Runs the checks on a target and stores the results. All targets of one network share them.

    target: has `network`, `text_config`, `forward` (a ModelInput -> its ModelOutput, without checks), `new_cache`,
    `vocab_size` and `context`.
    """

    def __init__(self, target):
        self.target = target
        self._asking = False

    @property
    def known(self) -> Answers:
        """The results for the network with its current attention implementation, device and dtype."""
        network = self.target.network
        attention = getattr(self.target.text_config, "_attn_implementation", None)
        return KNOWN.setdefault(network, {}).setdefault((attention, network.device, network.dtype), Answers())

    def reads_chains(self) -> bool:
        """Whether several tokens at once, after a cache rollback, get the logits of plain text."""
        if self._asking:  # the rollback within the check calls this method again
            return True
        known = self.known
        if known.chains is None:
            self._asking = True
            try:
                known.chains = self._agrees(chains_agree)
            finally:
                self._asking = False
        return known.chains

    def reads_branches(self, entries: int, ahead: int) -> bool:
        """Whether branches and side tokens get the logits of plain text when the cache has `entries` entries.

        ahead: estimate of the entries that the text will need. That length is checked first, so that one check serves
        the whole text; if it fails, `entries` is checked.
        """
        known = self.known
        if known.trees is None:
            known.trees = self.reads_chains() and self._agrees(branches_agree)
        return known.trees and self._reads_up_to(min(entries, self.target.context), ahead, known)

    def _reads_up_to(self, entries: int, ahead: int, known: Answers) -> bool:
        if known.good < entries < known.bad:
            ahead = max(entries, min(ahead, self.target.context))
            if ahead >= known.bad:  # bisect towards the window
                ahead = (entries + known.bad) // 2
            for length in dict.fromkeys((ahead, entries)):
                if self._agrees(long_text_agrees, length):
                    known.good = length
                    break
                known.bad = length
        return entries <= known.good

    @torch.no_grad()
    def _agrees(self, check: Callable[..., bool], *sizes: int) -> bool:
        """Run a check. False if the model raises an exception; Unsupported is raised again.

        Running out of memory is not a result: it raises torch.OutOfMemoryError, also on a CPU, where torch itself
        raises a RuntimeError.
        """
        try:
            return check(self.target, *sizes)
        except Unsupported:
            raise
        except Exception as error:  # models raise various errors for layouts that they do not support
            if out_of_memory(error):
                raise torch.OutOfMemoryError(str(error)) from error
            return False


def chains_agree(target) -> bool:
    """Check draft tokens that replace dropped ones and are fed at once, against the same tokens fed one by one."""
    # one by one
    ids = arbitrary_ids(7, target.vocab_size)
    cache = target.new_cache(len(ids))
    expected = torch.cat([_plain(target, part, cache) for part in (ids[:3], *([token] for token in ids[3:]))])
    # feed two wrong tokens, drop them, then feed the right ones at once; drop and feed the last two again
    cache = target.new_cache(len(ids))
    _plain(target, ids[:3], cache)
    _plain(target, ids[5:], cache)
    cache.keep(3)
    first = _plain(target, ids[3:], cache)
    cache.keep(5)
    again = _plain(target, ids[5:], cache)
    return agree(first, expected[3:]) and agree(again, expected[5:])


def branches_agree(target) -> bool:
    """Check a tree with a side token, fed in two passes, against plain passes along its paths.

    root - A - C - E
         - B - D - next, and a side token below B
    """
    *text, a, b, c, d, e, side, after = arbitrary_ids(11, target.vocab_size)
    left, right, beside = (_plain(target, text + path) for path in ([a, c, e], [b, d, after], [b, side]))
    first = len(text)  # entry of node 0
    cache = target.new_cache(len(text) + 4)
    _plain(target, text[:-1], cache)

    # first pass: root, A, B, C and the side token
    tree = tree_of([a, b, c], [ROOT, ROOT, 0])
    tree.add_side(SideTokens([side], [2], [[True]], [[1]]))
    found = target.forward(make_input(text[-1:], tree, cache)).logits
    cache.keep(first + 3)

    # second pass: D and E on top of the cached tree
    mask = tree_mask(1, tree_of([a, b, c, d, e], [ROOT, ROOT, 0, 1, 2]), first - 1)[-2:]
    offsets = [first + 1 - cache.length(), first + 2 - cache.length()]
    found = torch.cat([found, target.forward(ModelInput([d, e], offsets, mask, cache, 2)).logits])
    # accept B - D, then feed one more token
    cache.keep(first, [first + 1, first + 3])
    found = torch.cat([found, _plain(target, [after], cache)])

    # compare in the order of `found`
    left, right, beside = (rows[first - 1 :] for rows in (left, right, beside))
    expected = [left[0], left[1], right[1], left[2], beside[2], right[2], left[3], right[3]]
    return agree(found, torch.stack(expected))


def long_text_agrees(target, length: int) -> bool:
    """Check the last tokens of a text of `length` tokens, as the last branch of a wide tree, against a plain pass.

    This detects an attention window that is ignored under an explicit mask, or that counts the other branches.
    """
    depth = min(DEPTH, length - 1)
    ids = arbitrary_ids(length + WIDTH, target.vocab_size)
    (*text, root), others, branch = ids[: -depth - WIDTH], ids[-depth - WIDTH : -depth], ids[-depth:]
    tree = tree_of(others + branch, [ROOT] * WIDTH + [ROOT, *range(WIDTH, WIDTH + depth - 1)])

    # the branch as plain text
    cache = target.new_cache(length + WIDTH)
    if text:
        target.forward(plain_input(text, cache))
    expected = _plain(target, [root, *branch], cache)
    # the same as the last branch of the tree
    cache.keep(len(text))
    found = target.forward(make_input([root], tree, cache)).logits
    return agree(found[-depth:], expected[1:])


def tree_of(tokens: list[int], parents: list[int]) -> DraftTree:
    """A tree with these nodes. Equal sibling tokens, which a small vocabulary forces, keep separate nodes."""
    depths = []
    for parent in parents:
        depths.append(1 if parent == ROOT else depths[parent] + 1)
    return DraftTree(tokens=tokens, parents=parents, depths=depths, is_chain=False)


def agree(found: Tensor, expected: Tensor) -> bool:
    """Whether logits (n, V) differ only by rounding: RMS difference of each row relative to its standard deviation."""
    # 0.25 in bf16, 0.03 in fp16. For SmolLM2-135M rounding gives 0.07 in bf16 and 1e-5 in fp32; a wrong mask, position
    # or window gives 0.6 to 3.
    allowed = max(1e-3, 32 * torch.finfo(expected.dtype).eps)
    found, expected = found.cpu().double(), expected.cpu().double()  # Apple's GPU has no float64
    if found.shape != expected.shape or found.isnan().any() or not torch.equal(_scored(found), _scored(expected)):
        return False
    for ours, theirs in zip(found, expected, strict=True):
        ours, theirs = (row[_scored(theirs)] for row in (ours, theirs))
        if (ours - theirs).pow(2).mean().sqrt() > allowed * theirs.std(correction=0):
            return False
    return True


def arbitrary_ids(count: int, vocab_size: int) -> list[int]:
    """`count` random token ids, the same at every call, and all different if the vocabulary is large enough."""
    rng = random.Random(0)
    return rng.sample(range(vocab_size), count) if count <= vocab_size else rng.choices(range(vocab_size), k=count)


def _plain(target, tokens: list[int], cache=None) -> Tensor:
    """Logits of all tokens, fed as plain text after the cache's entries, or to a new cache."""
    cache = target.new_cache(len(tokens)) if cache is None else cache
    return target.forward(plain_input(tokens, cache, len(tokens))).logits


def _scored(logits: Tensor) -> Tensor:
    """Mask of the tokens with a regular logit. Some heads exclude tokens with minus infinity or the smallest number."""
    return logits > -1e30
