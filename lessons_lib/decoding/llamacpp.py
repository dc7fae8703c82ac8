"""llama.cpp as a baseline (lesson 11), through llama-cpp-python, on the GGUF file that our packaged weights come from.

Its matmuls read the 4-bit blocks of the file directly and quantize the activations to 8 bits. It is an optional
dependency: `pip install -e .[llamacpp]` compiles it from source. The file is in Q4_1. On x86 CPUs llama.cpp has faster
kernels for other formats, which it repacks; its own quantizer converts the file to those once.
"""

import io
import os
from collections.abc import Sequence
from contextlib import redirect_stderr
from functools import cached_property
from itertools import islice
from pathlib import Path
from time import perf_counter

import torch
from gguf import GGUFReader
from torch import Tensor

from lessons_lib import progress
from lessons_lib.measure.clock import Timeline
from lessons_lib.models.gguf import gguf_file
from lessons_lib.models.hub import PACKAGED
from lessons_lib.models.store import ModelUnavailable, stored
from lessons_lib.paths import cache_dir

HOW = "`pip install -e .[llamacpp]` compiles it from its source, about five minutes on two cores"
FORMATS = ("Q4_1", "Q4_0", "Q4_K_M")  # the first is that of the packaged file


class LlamaCpp:
    """A packaged model in llama.cpp, with as many threads as torch.

    context: tokens of its cache. lookup: draft tokens per step of llama.cpp's own prompt lookup (0: none), with its
    default n-grams of up to 2 tokens. weights: one of FORMATS. ModelUnavailable if llama-cpp-python is not installed,
    or if the model has no GGUF file or it cannot be fetched or requantized.
    """

    def __init__(self, name: str, context: int = 512, lookup: int = 0, weights: str = FORMATS[0]):
        library, self.context = _library(), context
        self.file, draft = weights_file(name, weights), None
        if lookup:
            from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

            draft = LlamaPromptLookupDecoding(max_ngram_size=2, num_pred_tokens=lookup)
        self.version = library.__version__
        self.instructions = library.llama_print_system_info().decode().strip(" |")  # that it was built with
        self.model = self._opened(draft_model=draft)

    def write(self, prompt: Sequence[int], new: int) -> tuple[list[int], Timeline]:
        """Generate exactly `new` greedy tokens after `prompt` (ids) -> (new ids, when each was available).

        No end token ends the text. As in our `generate`, nothing cached from an earlier prompt is reused.
        """
        self.model.reset()
        start, ids, times = perf_counter(), [], []
        for token in islice(self.model.generate(list(prompt), temp=0.0), new):
            ids.append(int(token))
            times.append(perf_counter())
        return ids, Timeline(start, times)

    def logits(self, ids: Sequence[int]) -> Tensor:
        """Logits (T, V) after each of the ids, in llama.cpp's arithmetic."""
        self._reader.reset()
        self._reader.eval(list(ids))
        return torch.from_numpy(self._reader.scores[: len(ids)].copy())

    @cached_property
    def parts(self) -> dict[str, int]:
        """Bytes of the file's tensors by format. Some tensors have another format than the file's name says."""
        return parts_of(self.file)

    @cached_property
    def _reader(self):
        """A second instance that computes the logits of all tokens, which would slow down `write`."""
        return self._opened(logits_all=True)

    def _opened(self, **options):
        threads = torch.get_num_threads()
        return _library().Llama(
            str(self.file), n_ctx=self.context, n_threads=threads, n_threads_batch=threads, verbose=False, **options
        )


def weights_file(name: str, weights: str) -> Path:
    """Path of the packaged model's GGUF file in one of FORMATS: the packaged file, or a requantized, cached copy."""
    library = _library()
    if name not in PACKAGED:
        raise ModelUnavailable(f"llama.cpp reads packaged models, not {name!r}; use one of: {', '.join(PACKAGED)}.")
    if weights not in FORMATS:
        raise ValueError(f"llama.cpp is not run here with weights in {weights!r}; use one of: {', '.join(FORMATS)}.")
    source = gguf_file(PACKAGED[name])
    if weights == FORMATS[0]:
        return source
    made_of = f"{name}-{PACKAGED[name].sha256[:12]}-by-{library.__version__}-{weights}"
    file = f"{weights}.gguf"
    return stored(cache_dir() / "llamacpp" / made_of, lambda fresh: _requantize(source, fresh / file, weights)) / file


def parts_of(file: Path) -> dict[str, int]:
    """Bytes of a GGUF file's tensors by format, largest first."""
    sizes: dict[str, int] = {}
    for tensor in GGUFReader(file).tensors:
        sizes[tensor.tensor_type.name] = sizes.get(tensor.tensor_type.name, 0) + int(tensor.n_bytes)
    return dict(sorted(sizes.items(), key=lambda part: -part[1]))


def missing() -> str:
    """The reason why llama.cpp cannot run here; "" if it can."""
    try:
        _library()
    except ModelUnavailable as problem:
        return str(problem)
    return ""


def _requantize(source: Path, file: Path, weights: str) -> None:
    """Write `source` with its layers in another format. The embedding, which is also the LM head, stays in 8 bits."""
    library = _library()
    progress.say(f"Requantizing {source.name} to {weights} (once, a few seconds)")
    options = library.llama_model_quantize_default_params()
    options.ftype = getattr(library, f"LLAMA_FTYPE_MOSTLY_{weights}")
    options.allow_requantize, options.nthread = True, torch.get_num_threads()
    options.output_tensor_type = options.token_embedding_type = library.GGML_TYPE_Q8_0
    with redirect_stderr(io.StringIO()):  # a line for every tensor
        failed = library.llama_model_quantize(os.fsencode(source), os.fsencode(file), options)
    if failed:
        raise ModelUnavailable(f"llama.cpp could not requantize {source.name} to {weights}; use {FORMATS[0]}.")


def _library():
    try:
        import llama_cpp
    except (ImportError, OSError, RuntimeError) as error:  # not installed, or its shared library cannot be loaded
        raise ModelUnavailable(f"llama.cpp cannot be run here ({type(error).__name__}): {HOW}.") from None
    return llama_cpp
