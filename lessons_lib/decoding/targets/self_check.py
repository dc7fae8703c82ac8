"""What a model can read besides plain text, found by asking it (lesson 06).

A draft is only verified if the model reads it as it would read the same tokens as plain text. Models differ in how they
take positions, masks and windows, and no config says so reliably. So before a network's first pass of a kind, the same
made-up tokens are run in both layouts, and the logits must agree.

Chains take 9 short passes, branches 7 more, once for each network, attention implementation, device and dtype. Branches
also need a text as long as the one to come, which is read into a second cache (3 passes). Longer texts are tried as
they come; near a window the two lengths between which it lies are halved. The trace counts none of these passes, but
their seconds are part of the step that asks.
"""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from lessons_lib.decoding.draft_tree import ROOT, DraftTree, ModelInput, SideTokens, make_input, plain_input, tree_mask
from lessons_lib.decoding.targets.base import Unsupported

DEPTH, WIDTH = 4, 16  # tokens compared at the end of a long text, and branches beside them


@dataclass
class Answers:
    """What is known of a network. chains, trees: whether it reads them, None until it was asked.

    good, bad: entries up to which branches are right, and from which they are wrong.
    """

    chains: bool | None = None
    trees: bool | None = None
    good: int = 0
    bad: float = math.inf


# network -> (attention implementation, device, dtype) -> Answers; no answer refers to the network, so that it can go
KNOWN: WeakKeyDictionary = WeakKeyDictionary()


class SelfCheck:
    """Asks a target what it can read; all targets of one network share the answers.

    target: needs `network`, `text_config`, `forward` (a block -> its scores, unchecked), `new_cache`, `vocab_size` and
    `context`.
    """

    def __init__(self, target):
        self.target = target
        self._asking = False

    @property
    def known(self) -> Answers:
        """What is known of the network as it is now."""
        network = self.target.network
        attention = getattr(self.target.text_config, "_attn_implementation", None)
        return KNOWN.setdefault(network, {}).setdefault((attention, network.device, network.dtype), Answers())

    def reads_chains(self) -> bool:
        """Whether several tokens at once, behind a cache that was cut back, get the logits of plain text."""
        if self._asking:  # a cache that is cut back in the check asks, too
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
        """Whether branches and side tokens get the logits of plain text while the cache has so many entries.

        ahead: entries that the text will need, as far as is known. It is tried with a text of that length, so that a
        text asks once; where that fails, at the length in use.
        """
        known = self.known
        if known.trees is None:
            known.trees = self.reads_chains() and self._agrees(branches_agree)
        return known.trees and self._reads_up_to(min(entries, self.target.context), ahead, known)

    def _reads_up_to(self, entries: int, ahead: int, known: Answers) -> bool:
        if known.good < entries < known.bad:
            ahead = max(entries, min(ahead, self.target.context))
            if ahead >= known.bad:
                ahead = (entries + known.bad) // 2
            for length in dict.fromkeys((ahead, entries)):
                if self._agrees(long_text_agrees, length):
                    known.good = length
                    break
                known.bad = length
        return entries <= known.good

    @torch.no_grad()
    def _agrees(self, check: Callable[..., bool], *sizes: int) -> bool:
        """A model that raises does not agree, unless it says itself what is unsupported.

        Lack of memory is no answer: torch.OutOfMemoryError, also on a CPU, where torch raises a RuntimeError.
        """
        try:
            return check(self.target, *sizes)
        except (Unsupported, torch.OutOfMemoryError):
            raise
        except Exception as error:  # whatever a model raises for a layout that it was not made for
            if "allocate memory" in str(error) or "out of memory" in str(error):
                raise torch.OutOfMemoryError(str(error)) from error
            return False


def chains_agree(target) -> bool:
    """Draft tokens that are dropped, and others fed at once in their place, against the same tokens fed one by one."""
    ids = made_up(7, target.vocab_size)
    cache = target.new_cache(len(ids))
    expected = torch.cat([_plain(target, part, cache) for part in (ids[:3], *([token] for token in ids[3:]))])
    cache = target.new_cache(len(ids))
    _plain(target, ids[:3], cache)
    _plain(target, ids[5:], cache)
    cache.keep(3)
    first = _plain(target, ids[3:], cache)
    cache.keep(5)
    again = _plain(target, ids[5:], cache)
    return agree(first, expected[3:]) and agree(again, expected[5:])


def branches_agree(target) -> bool:
    """A tree with a side token, fed in two passes, against plain passes along its paths.

    root - A - C - E
         - B - D - next, and a side token below B
    """
    *text, a, b, c, d, e, side, after = made_up(11, target.vocab_size)
    left, right, beside = (_plain(target, text + path) for path in ([a, c, e], [b, d, after], [b, side]))
    first = len(text)  # entry of node 0
    cache = target.new_cache(len(text) + 4)
    _plain(target, text[:-1], cache)

    tree = tree_of([a, b, c], [ROOT, ROOT, 0])
    tree.add_side(SideTokens([side], [2], [[True]], [[1]]))
    found = target.forward(make_input(text[-1:], tree, cache)).logits
    cache.keep(first + 3)

    mask = tree_mask(1, tree_of([a, b, c, d, e], [ROOT, ROOT, 0, 1, 2]), first - 1)[-2:]
    offsets = [first + 1 - cache.length(), first + 2 - cache.length()]
    found = torch.cat([found, target.forward(ModelInput([d, e], offsets, mask, cache, 2)).logits])
    cache.keep(first, [first + 1, first + 3])
    found = torch.cat([found, _plain(target, [after], cache)])

    left, right, beside = (rows[first - 1 :] for rows in (left, right, beside))
    expected = [left[0], left[1], right[1], left[2], beside[2], right[2], left[3], right[3]]
    return agree(found, torch.stack(expected))


def long_text_agrees(target, length: int) -> bool:
    """The last tokens of a text of `length` tokens as the last branch of a wide tree, against none.

    A window shows, whether it is lost under an explicit mask or counts the other branches.
    """
    depth = min(DEPTH, length - 1)
    ids = made_up(length + WIDTH, target.vocab_size)
    (*text, root), others, branch = ids[: -depth - WIDTH], ids[-depth - WIDTH : -depth], ids[-depth:]
    tree = tree_of(others + branch, [ROOT] * WIDTH + [ROOT, *range(WIDTH, WIDTH + depth - 1)])

    cache = target.new_cache(length + WIDTH)
    if text:
        target.forward(plain_input(text, cache))
    expected = _plain(target, [root, *branch], cache)
    cache.keep(len(text))
    found = target.forward(make_input([root], tree, cache)).logits
    return agree(found[-depth:], expected[1:])


def tree_of(tokens: list[int], parents: list[int]) -> DraftTree:
    """A tree with these nodes; equal tokens in a small vocabulary keep nodes of their own."""
    depths = []
    for parent in parents:
        depths.append(1 if parent == ROOT else depths[parent] + 1)
    return DraftTree(tokens=tokens, parents=parents, depths=depths, is_chain=False)


def agree(found: Tensor, expected: Tensor) -> bool:
    """Whether logits (n, V) differ by no more than rounding does, measured by the spread of each row.

    Of SmolLM2-135M rounding moves them by 0.07 of the spread in bf16 and 0.00001 in fp32; a lost mask, position or
    window by 0.6 to 3.
    """
    allowed = max(1e-3, 32 * torch.finfo(expected.dtype).eps)  # 0.25 in bf16, 0.03 in fp16
    found, expected = found.double(), expected.double()
    if found.shape != expected.shape or found.isnan().any() or not torch.equal(_scored(found), _scored(expected)):
        return False
    for ours, theirs in zip(found, expected, strict=True):
        ours, theirs = (row[_scored(theirs)] for row in (ours, theirs))
        if (ours - theirs).pow(2).mean().sqrt() > allowed * theirs.std(correction=0):
            return False
    return True


def made_up(count: int, vocab_size: int) -> list[int]:
    """So many token ids, the same every time, and different ones while there are enough."""
    rng = random.Random(0)
    return rng.sample(range(vocab_size), count) if count <= vocab_size else rng.choices(range(vocab_size), k=count)


def _plain(target, tokens: list[int], cache=None) -> Tensor:
    """Logits of all tokens, read behind the cache, or from the start."""
    cache = target.new_cache(len(tokens)) if cache is None else cache
    return target.forward(plain_input(tokens, cache, len(tokens))).logits


def _scored(logits: Tensor) -> Tensor:
    """Which tokens have a score: some heads leave tokens out by minus infinity or the least number."""
    return logits > -1e30
