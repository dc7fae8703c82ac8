"""Targets: what decodes. One interface over any causal LM of transformers and over our own decoder.

base                    what the loop asks of a target
transformers            any causal LM of transformers; self_check finds out what the model can read besides plain text
decoder                 our decoder, eager, all rows in one forward pass
compiled                our decoder compiled: compiled_step is one forward pass of it, compiler torch's settings
one_by_one              a target fed token by token, for drafts
table                   a table of probabilities, for toys
"""

from lessons_lib.decoding.targets.base import Target, Unsupported
from lessons_lib.decoding.targets.compiled import CompiledTarget
from lessons_lib.decoding.targets.decoder import DecoderTarget
from lessons_lib.decoding.targets.transformers import TransformersTarget
from lessons_lib.models.hub import LanguageModel

__all__ = ["CompiledTarget", "DecoderTarget", "Target", "TransformersTarget", "Unsupported", "as_target"]


def as_target(model) -> Target:
    """A Target as it is; what `LanguageModel.target` chooses for it; a causal LM of transformers by its own pass.

    TypeError for what cannot decode.
    """
    if isinstance(model, Target):
        return model
    if isinstance(model, LanguageModel):
        return model.target()
    if hasattr(model, "config") and callable(model):
        return TransformersTarget(model)
    raise TypeError(f"{type(model).__name__} cannot decode; pass lessons_lib.load(...) or a transformers model")
