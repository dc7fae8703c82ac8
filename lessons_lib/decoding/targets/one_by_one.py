"""A target that is fed token by token (lesson 10), for a draft model whose step is fast only for one token."""

import copy

from lessons_lib.decoding.draft_tree import ModelInput, ModelOutput, plain_input
from lessons_lib.decoding.targets.base import Target

SHORT = 4  # inputs of up to so many tokens are fed one by one; a longer one is a prompt


def one_by_one(target: Target) -> Target:
    """A copy of the target that feeds short plain inputs one token at a time and returns the last token's output.

    After a step whose draft tokens were all accepted, the draft model has two uncomputed tokens. A draft model compiled
    for one token would run both eagerly, which may take longer than many compiled steps. Other inputs run unchanged:
    prompts, inputs with a mask, and inputs that need the logits of more than the last token.
    """
    other = copy.copy(target)
    other.run = lambda inputs: [_scores(target, model_input) for model_input in inputs]
    return other


def _scores(target: Target, model_input: ModelInput) -> ModelOutput:
    whole = model_input.mask is not None or model_input.wanted != 1 or len(model_input.tokens) > SHORT
    parts = [model_input] if whole else [plain_input([token], model_input.cache) for token in model_input.tokens]
    if not whole:
        parts[-1].after = model_input.after
    return [target.run([part])[0] for part in parts][-1]
