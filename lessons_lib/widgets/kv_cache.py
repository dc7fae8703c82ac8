"""Lesson 02's widget: how many bytes a KV cache takes, and how many requests fit beside the weights."""

from dataclasses import dataclass

from matplotlib.axes import Axes

from lessons_lib.caches.sizes import kv_bytes, requests_that_fit
from lessons_lib.figures.latency import plot_parts
from lessons_lib.measure.config import CONFIGS, ELEMENT_BYTES, ModelConfig
from lessons_lib.measure.roofline import cache_element_bytes
from lessons_lib.widgets.controls import Slider, show

GIB = 2**30
DTYPES = ("fp32", "bf16", "int8", "int4")
MEMORIES = (4, 8, 16, 24, 40, 80, 141)  # GiB; the larger ones are those of common data-centre GPUs


@dataclass(frozen=True)
class Fit:
    """What a batch needs, in bytes, and how many requests of its length fit into the memory."""

    weights: float
    cache: float
    memory: float
    requests: int

    @property
    def fits(self) -> bool:
        """Whether weights and this batch's cache fit together."""
        return self.weights + self.cache <= self.memory


def fit(shape: ModelConfig, dtype: str, batch: int, context: int, memory: float) -> Fit:
    """Bytes of weights and cache for `batch` requests of `context` tokens, and how many fit into `memory` bytes.

    dtype: of the weights, else KeyError; fp32 weights keep an fp32 cache, all others one of 16 bits. Norms, biases and
    activations are ignored.
    """
    table = (
        0 if shape.tie_word_embeddings else shape.head_weights
    )  # an untied embedding lies in memory, though no step reads it
    weights = (shape.weights + table) * ELEMENT_BYTES[dtype]
    element = cache_element_bytes(dtype)
    cache = kv_bytes(shape, context, batch, element)
    return Fit(weights, cache, memory, requests_that_fit(memory, weights, shape, context, element))


def draw_kv_cache(model: str, dtype: str, batch: int, context: int, memory: int) -> Axes:
    """Weights and cache of this batch as one bar, against the memory (GiB, dotted).

    context: tokens. KeyError for a model or dtype that is not known.
    """
    shape = CONFIGS[model]
    held = min(context, shape.max_position_embeddings)
    need = fit(shape, dtype, batch, held, memory * GIB)
    label = f"{batch} × {held:,}\ntokens" + ("\n(the model's most)" if held < context else "")
    parts = {"weights": need.weights / GIB, "kv cache": need.cache / GIB}
    ax = plot_parts({label: parts}, "GiB (dotted: the memory)", limit=memory)
    ax.set_title(_headline(need), fontsize=11, pad=32)
    return ax


def describe_kv_cache(model: str, dtype: str, batch: int, context: int, memory: int) -> str:
    """The figure in words; KeyError for a model or dtype that is not known."""
    shape = CONFIGS[model]
    held = min(context, shape.max_position_embeddings)
    need = fit(shape, dtype, batch, held, memory * GIB)
    cut = f", the model's most and less than {context:,}," if held < context else ""
    return (
        f"{model} in {dtype}, {batch} requests of {held:,} tokens{cut} in {memory} GiB: weights "
        f"{need.weights / GIB:.3g} GiB, {_headline(need)}."
    )


def show_kv_cache(model: str = "smollm2-135m", dtype: str = "bf16") -> None:
    """Controls for model, dtype, batch, context and memory over the size of the KV cache.

    A context longer than the model's own is cut to it, and the figure says so. model, dtype: where their sliders start;
    ValueError for one that is not in CONFIGS or DTYPES.
    """
    controls = {
        "model": Slider("model", tuple(CONFIGS), model),
        "dtype": Slider("weights' dtype", DTYPES, dtype),
        "batch": Slider("batch", tuple(2**k for k in range(9)), 8, "requests"),
        "context": Slider("context", tuple(2**k for k in range(7, 16)), 2048, "tokens"),
        "memory": Slider("memory", MEMORIES, 16, "GiB"),
    }
    show(controls, draw_kv_cache, describe_kv_cache)


def _headline(need: Fit) -> str:
    """The result in one line."""
    verdict = "fits" if need.fits else "does not fit"
    return f"cache {need.cache / GIB:.3g} GiB, {verdict}; room for {need.requests:,} such requests"
