"""llama.cpp beside us (lesson 11), through llama-cpp-python, on the very file that our packaged weights come from.

Its matrix products read the file's 4-bit blocks as they are and round the inputs to 8 bits on the way. It is an extra:
`pip install -e .[llamacpp]` compiles it from its source.
"""

from collections.abc import Sequence
from itertools import islice
from time import perf_counter

import torch

from lessons_lib.measure.timeline import Timeline
from lessons_lib.models.packaged import gguf_file
from lessons_lib.models.registry import PACKAGED
from lessons_lib.models.store import ModelUnavailable

HOW = "`pip install -e .[llamacpp]` compiles it from its source, about five minutes on two cores"


class LlamaCpp:
    """A packaged model in llama.cpp, as many threads as torch has.

    lookup: guesses a step of its own prompt lookup (0: none), by n-grams of up to 2 tokens, its default. context:
    tokens that its cache holds. ModelUnavailable without the extra, for a model that no GGUF file is packaged of, and
    where that file cannot be fetched.
    """

    def __init__(self, name: str, context: int = 512, lookup: int = 0):
        library = _library()
        if name not in PACKAGED:
            raise ModelUnavailable(f"llama.cpp reads packaged models, not {name!r}; use one of: {', '.join(PACKAGED)}.")
        threads, draft = torch.get_num_threads(), None
        if lookup:
            from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

            draft = LlamaPromptLookupDecoding(max_ngram_size=2, num_pred_tokens=lookup)
        self.version = library.__version__
        self.instructions = library.llama_print_system_info().decode().strip(" |")  # that it was built for
        self.model = library.Llama(
            str(gguf_file(PACKAGED[name])), n_ctx=context, n_threads=threads, n_threads_batch=threads,
            draft_model=draft, verbose=False,
        )  # fmt: skip

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


def missing() -> str:
    """Why llama.cpp cannot be run here, a sentence; "" if it can."""
    try:
        _library()
    except ModelUnavailable as problem:
        return str(problem)
    return ""


def _library():
    try:
        import llama_cpp
    except (ImportError, OSError, RuntimeError) as error:  # not there, or its library cannot be loaded
        raise ModelUnavailable(f"llama.cpp cannot be run here ({type(error).__name__}): {HOW}.") from None
    return llama_cpp
