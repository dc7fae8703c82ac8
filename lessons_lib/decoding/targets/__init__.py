"""Targets: models that run forward passes for the decoding loop, behind one interface.

decoder                 the interface, and our decoder, eager; all sequences in one forward pass
transformers            any causal LM of transformers; self_check tests which draft layouts the model computes correctly
compiled                our decoder, compiled
streaming               our decoder with caches that keep the first and the newest tokens
table                   a table of probabilities, for toy examples
"""

from lessons_lib.decoding.targets.compiled import CompiledTarget
from lessons_lib.decoding.targets.decoder import DecoderTarget, Target, Unsupported
from lessons_lib.decoding.targets.streaming import CompiledStreamingTarget, StreamingTarget
from lessons_lib.decoding.targets.transformers import TransformersTarget
from lessons_lib.models.hub import LanguageModel

__all__ = [
    "CompiledStreamingTarget",
    "CompiledTarget",
    "DecoderTarget",
    "StreamingTarget",
    "Target",
    "TransformersTarget",
    "Unsupported",
    "as_target",
]


def as_target(model) -> Target:
    """The target to decode a model with. TypeError if the model cannot decode.

    A Target is returned unchanged. A LanguageModel chooses its target itself (`LanguageModel.target`). A causal LM of
    transformers becomes a TransformersTarget.
    """
    if isinstance(model, Target):
        return model
    if isinstance(model, LanguageModel):
        return model.target()
    if hasattr(model, "config") and callable(model):
        return TransformersTarget(model)
    raise TypeError(f"{type(model).__name__} cannot decode; pass lessons_lib.load(...) or a transformers model")
