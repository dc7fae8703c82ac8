"""Figure and widget of the KV cache lesson: size of a cache, and how many sequences fit into memory."""

from collections.abc import Iterable
from typing import NamedTuple

from matplotlib.axes import Axes

from lessons_lib.caches.sizes import kv_bytes, requests_that_fit
from lessons_lib.course.figures import Row, axes, grouped, look, plot_parts
from lessons_lib.course.widgets import Slider, show
from lessons_lib.measure.config import CONFIGS, ELEMENT_BYTES, ModelConfig
from lessons_lib.measure.cost import cache_element_bytes

GIB = 2**30
DTYPES = ("fp32", "bf16", "int8", "int4")
MEMORIES = (4, 8, 16, 24, 40, 80, 141)  # GiB; the larger ones are those of common data-centre GPUs


def plot_cache_memory(rows: Iterable[Row]) -> Axes:
    """Size of the KV cache against cached tokens for several models, log-log. rows: `model`, `tokens`, `bytes`."""
    ax = axes((6.4, 4.2))
    for number, (model, group) in enumerate(grouped(rows, "model").items()):
        color, marker = look(number)
        size = max(4, 10 - number)  # smaller markers on top, so that two models with equal caches both show
        gib = [row["bytes"] / GIB for row in group]
        ax.plot([row["tokens"] for row in group], gib, marker=marker, markersize=size, color=color, label=model)
    ax.set(xlabel="tokens cached", ylabel="KV cache [GiB]")
    ax.set_xscale("log", base=2)
    ax.set_yscale("log", base=2)
    ax.xaxis.set_major_formatter(lambda tokens, _: f"{tokens:,.0f}")
    ax.tick_params(axis="x", rotation=30)
    ax.yaxis.set_major_formatter(lambda gib, _: f"{gib:.2g}")
    ax.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    return ax


class Fit(NamedTuple):
    """Bytes that a batch needs, and the number of sequences of this length that fit into memory."""

    weights: float
    cache: float
    requests: int


def fit(shape: ModelConfig, dtype: str, batch: int, context: int, memory: float) -> Fit:
    """Bytes of weights and cache for `batch` sequences of `context` tokens, and how many fit into `memory` bytes.

    fp32 weights use an fp32 cache, all others a 16-bit one. Norms, biases and activations are ignored.
    """
    # an untied embedding takes memory, though no step reads it whole
    table = 0 if shape.tie_word_embeddings else shape.head_weights
    weights = (shape.weights + table) * ELEMENT_BYTES[dtype]
    element = cache_element_bytes(dtype)
    cache = kv_bytes(shape, context, batch, element)
    return Fit(weights, cache, requests_that_fit(memory, weights, shape, context, element))


def draw_kv_cache(model: str, dtype: str, batch: int, context: int, memory: int) -> tuple[Axes, str]:
    """Weights and cache of this batch as one bar, against the memory (GiB, dotted)."""
    shape = CONFIGS[model]
    held = min(context, shape.max_position_embeddings)
    need = fit(shape, dtype, batch, held, memory * GIB)
    verdict = "fits" if need.weights + need.cache <= memory * GIB else "does not fit"
    said = f"cache {need.cache / GIB:.3g} GiB, {verdict}; room for {need.requests:,} such requests"
    label = f"{batch} × {held:,}\ntokens" + ("\n(the model's most)" if held < context else "")
    parts = {"weights": need.weights / GIB, "kv cache": need.cache / GIB}
    ax = plot_parts({label: parts}, "GiB (dotted: the memory)", limit=memory)
    ax.set_title(said, fontsize=11, pad=32)
    cut = f", the model's most and less than {context:,}," if held < context else ""
    return ax, (
        f"{model} in {dtype}, {batch} requests of {held:,} tokens{cut} in {memory} GiB: weights "
        f"{need.weights / GIB:.3g} GiB, {said}."
    )


def show_kv_cache(model: str = "smollm2-135m", dtype: str = "bf16") -> None:
    """Sliders for model, dtype, batch, context and memory; shows the size of the KV cache.

    A context longer than the model's own is cut to it, and the figure notes this.
    """
    controls = {
        "model": Slider("model", tuple(CONFIGS), model),
        "dtype": Slider("weights' dtype", DTYPES, dtype),
        "batch": Slider("batch", tuple(2**k for k in range(9)), 8, "requests"),
        "context": Slider("context", tuple(2**k for k in range(7, 16)), 2048, "tokens"),
        "memory": Slider("memory", MEMORIES, 16, "GiB"),
    }
    show(controls, draw_kv_cache)
