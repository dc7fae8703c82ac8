"""Models: where their weights come from, on which device and in which format they run.

`load(name)` gives a LanguageModel; `tiny()` a random network for tests; `cut(model)` the first layers of one.
"""

from lessons_lib.models.device import dtype_name, pick_device, pick_dtype
from lessons_lib.models.language_model import LanguageModel, cut
from lessons_lib.models.loading import load
from lessons_lib.models.registry import names
from lessons_lib.models.store import ModelUnavailable
from lessons_lib.models.tiny_models import tiny

__all__ = [
    "LanguageModel",
    "ModelUnavailable",
    "cut",
    "dtype_name",
    "load",
    "names",
    "pick_device",
    "pick_dtype",
    "tiny",
]
