"""llama.cpp beside us (lesson 11), through llama-cpp-python, on the very file that our packaged weights come from.

Its matrix products read the file's 4-bit blocks as they are and round the inputs to 8 bits on the way. It is an extra:
`pip install -e .[llamacpp]` compiles it from its source. The file is in Q4_1; on x86 CPUs llama.cpp repacks other
formats for faster kernels, so its own quantizer makes those of the same file, once.
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
FORMATS = ("Q4_1", "Q4_0", "Q4_K_M")  # the packaged file's own first


class LlamaCpp:
    """A packaged model in llama.cpp, as many threads as torch has.

    lookup: guesses a step of its own prompt lookup (0: none), by n-grams of up to 2 tokens, its default. context:
    tokens that its cache holds. weights: one of FORMATS. ModelUnavailable without the extra, for a model that no GGUF
    file is packaged of, and where that file cannot be fetched or requantized. ValueError for other weights.
    """

    def __init__(self, name: str, context: int = 512, lookup: int = 0, weights: str = FORMATS[0]):
        library, self.context = _library(), context
        self.file, draft = weights_file(name, weights), None
        if lookup:
            from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

            draft = LlamaPromptLookupDecoding(max_ngram_size=2, num_pred_tokens=lookup)
        self.version = library.__version__
        self.instructions = library.llama_print_system_info().decode().strip(" |")  # that it was built for
        self.model = self._opened(draft_model=draft)

    def write(self, prompt: Sequence[int], new: int) -> tuple[list[int], Timeline]:
        """`new` greedy tokens after `prompt` (ids), and when each could be read. No token ends the text.

        Nothing of an earlier prompt is used again, as `generate` of ours uses nothing. RuntimeError of llama.cpp for
        more tokens than its cache holds.
        """
        self.model.reset()
        start, ids, times = perf_counter(), [], []
        for token in islice(self.model.generate(list(prompt), temp=0.0), new):
            ids.append(int(token))
            times.append(perf_counter())
        return ids, Timeline(start, times)

    def logits(self, ids: Sequence[int]) -> Tensor:
        """(T, V) what it says after each of the ids, in its own arithmetic. RuntimeError as `write`."""
        self._reader.reset()
        self._reader.eval(list(ids))
        return torch.from_numpy(self._reader.scores[: len(ids)].copy())

    @cached_property
    def parts(self) -> dict[str, int]:
        """Bytes of the file's tensors by their format: not all have the one that the file is named by."""
        return parts_of(self.file)

    @cached_property
    def _reader(self):
        """The model once more, for the logits of all tokens: `write` would take longer for them."""
        return self._opened(logits_all=True)

    def _opened(self, **options):
        threads = torch.get_num_threads()
        return _library().Llama(
            str(self.file), n_ctx=self.context, n_threads=threads, n_threads_batch=threads, verbose=False, **options
        )


def weights_file(name: str, weights: str) -> Path:
    """The packaged model's GGUF file in one of FORMATS: as it is packaged, or requantized from that and kept.

    Errors as those of LlamaCpp.
    """
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
    """Bytes of a GGUF file's tensors by their format, the largest part first."""
    sizes: dict[str, int] = {}
    for tensor in GGUFReader(file).tensors:
        sizes[tensor.tensor_type.name] = sizes.get(tensor.tensor_type.name, 0) + int(tensor.n_bytes)
    return dict(sorted(sizes.items(), key=lambda part: -part[1]))


def missing() -> str:
    """Why llama.cpp cannot be run here, a sentence; "" if it can."""
    try:
        _library()
    except ModelUnavailable as problem:
        return str(problem)
    return ""


def _requantize(source: Path, file: Path, weights: str) -> None:
    """Writes `source` with its layers in another format; the embedding, which is the head too, stays in 8 bits."""
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
    except (ImportError, OSError, RuntimeError) as error:  # not there, or its library cannot be loaded
        raise ModelUnavailable(f"llama.cpp cannot be run here ({type(error).__name__}): {HOW}.") from None
    return llama_cpp
