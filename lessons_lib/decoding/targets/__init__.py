"""Targets: what decodes. One interface over any causal LM of transformers and over our own decoder."""

from lessons_lib.decoding.targets.base import Target, Unsupported
from lessons_lib.decoding.targets.compiled import CompiledTarget
from lessons_lib.decoding.targets.decoder import DecoderTarget
from lessons_lib.decoding.targets.transformers import TransformersTarget

__all__ = ["CompiledTarget", "DecoderTarget", "Target", "TransformersTarget", "Unsupported", "as_target"]


def as_target(model) -> Target:
    """A Target as it is; a LanguageModel or a causal LM of transformers through its own forward."""
    if isinstance(model, Target):
        return model
    if hasattr(model, "network"):
        return TransformersTarget(model.network, model.tokenizer)
    if hasattr(model, "config") and callable(model):
        return TransformersTarget(model)
    raise TypeError(f"{type(model).__name__} cannot decode; pass lessons_lib.load(...) or a transformers model")
