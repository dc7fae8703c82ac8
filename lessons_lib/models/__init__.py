"""Models (every lesson): loading weights, and the device and format that they run in.

`load(name)` returns a LanguageModel, `tiny()` a random network for tests, `cut(model)` the first layers of a model.

hub             model names and `load`; gguf, store: the packaged model converted to a checkpoint
device          devices and dtypes; tokenizers: whether two models share one
decoder         the readable decoder; checkpoint: names of its weights
draft           our small draft model and its file; trained: weights and cards that come with the package
exits           logits after any layer, the fine-tuned model and its file
sparse, lora    copies of the decoder with hooks, cut inputs or skipped work; low-rank adapters
"""

import logging

for _name in ("torchao", "torch.utils._pytree"):
    logging.getLogger(_name).setLevel(logging.ERROR)

from lessons_lib.models.decoder import Decoder, Segment, attend, rotary_tables, with_attention  # noqa: E402
from lessons_lib.models.device import pick  # noqa: E402
from lessons_lib.models.draft import decoder_of, draft_format  # noqa: E402
from lessons_lib.models.exits import exit_logits, load_exit  # noqa: E402
from lessons_lib.models.hub import LanguageModel, attending, cut, load, names  # noqa: E402
from lessons_lib.models.libraries import by_library, bytes_held  # noqa: E402
from lessons_lib.models.sparse import (  # noqa: E402
    attention_weights,
    calibrated,
    cut_gates,
    cut_inputs,
    drop,
    gate_of,
    keep_keys,
    skipping,
    sum_rows,
    tapped,
)
from lessons_lib.models.store import ModelUnavailable  # noqa: E402
from lessons_lib.models.tiny_models import tiny  # noqa: E402
from lessons_lib.models.tokenizers import check_same_tokenizer  # noqa: E402
from lessons_lib.models.trained import read_card  # noqa: E402

__all__ = [
    "Decoder",
    "LanguageModel",
    "ModelUnavailable",
    "Segment",
    "attend",
    "attending",
    "attention_weights",
    "by_library",
    "bytes_held",
    "calibrated",
    "check_same_tokenizer",
    "cut",
    "cut_gates",
    "cut_inputs",
    "decoder_of",
    "draft_format",
    "drop",
    "exit_logits",
    "gate_of",
    "keep_keys",
    "load",
    "load_exit",
    "names",
    "pick",
    "read_card",
    "rotary_tables",
    "skipping",
    "sum_rows",
    "tapped",
    "tiny",
    "with_attention",
]
