"""A target that is fed token by token (lesson 10): for a draft whose step is fast for one row and no more."""

import copy

from lessons_lib.decoding.draft_tree import ModelInput, ModelOutput, plain_input
from lessons_lib.decoding.targets.base import Target

SHORT = 4  # tokens of a block that are fed one by one; a longer one is a prompt


def one_by_one(target: Target) -> Target:
    """The target with plain blocks of a few tokens fed in as many runs, of which the last one's scores count.

    A draft lacks two tokens after a step whose guesses were all right. Compiled for one row, it would run both
    eagerly, which may take longer than many compiled steps. Other blocks, those that ask for more than the last
    token's logits among them, are run as they are. Errors are the target's.
    """
    other = copy.copy(target)
    other.run = lambda blocks: [_scores(target, block) for block in blocks]
    return other


def _scores(target: Target, block: ModelInput) -> ModelOutput:
    whole = block.mask is not None or block.wanted != 1 or len(block.tokens) > SHORT
    parts = [block] if whole else [plain_input([token], block.cache) for token in block.tokens]
    if not whole:
        parts[-1].after = block.after
    return [target.run([part])[0] for part in parts][-1]
