"""Widget of the KV cache lesson: size of a cache, and how many requests fit into a GPU's memory. GB = 1e9 bytes."""

from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.patches import Patch

from lessons_lib.caches.sizes import kv_bytes, requests_that_fit
from lessons_lib.course.figures import COLORS, INK, LIFTED, PAPER, WIDTH, axes
from lessons_lib.course.widgets import Slider, show
from lessons_lib.measure.config import CONFIGS, ELEMENT_BYTES, ModelConfig
from lessons_lib.measure.cost import cache_element_bytes

GB = 1e9
DTYPES = ("fp32", "bf16", "int8", "int4")
MEMORIES = (4, 8, 16, 24, 40, 80, 141)  # GB; the larger ones are those of common data-centre GPUs


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


def plot_memory(label: str, parts: dict[str, float], memory: float) -> Axes:
    """One horizontal bar, stacked from parts in GB, against the memory; its total stands at the end."""
    ax, total = axes((WIDTH, 1.8)), sum(parts.values())
    longest = max(memory, total)
    ax.axvline(memory, linestyle=":", color=COLORS["limit"])
    left = 0.0
    for name, value in parts.items():
        ax.barh(label, value, left=left, color=COLORS[name], height=0.7)
        if value >= 0.09 * longest:  # wide enough for a label
            ax.text(left + value / 2, label, f"{value:.3g}", color=PAPER, ha="center", va="center")
        left += value
    end = memory if 0 <= memory - total < 0.08 * longest else total  # the total must not cover the dotted line
    said = f"{total:.3g} of {memory:.3g}"
    ax.text(end + 0.01 * longest, label, said, color=INK, va="center", bbox=LIFTED)
    ax.set(xlabel="GB (dotted: the memory)", xlim=(0, 1.25 * longest))
    handles = [Patch(color=COLORS[name], label=name) for name in parts]
    ax.legend(handles=handles, loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2)
    ax.grid(axis="y", visible=False)
    ax.invert_yaxis()
    return ax


def draw_kv_cache(model: str, dtype: str, batch: int, context: int, memory: int) -> tuple[Axes, str]:
    """Weights and cache of this batch as one bar, against the memory (GB, dotted)."""
    shape = CONFIGS[model]
    held = min(context, shape.max_position_embeddings)
    need = fit(shape, dtype, batch, held, memory * GB)
    verdict = "fits" if need.weights + need.cache <= memory * GB else "does not fit"
    label = f"{batch} × {held:,}\ntokens" + ("\n(the model's most)" if held < context else "")
    ax = plot_memory(label, {"weights": need.weights / GB, "KV cache": need.cache / GB}, memory)
    count = f"{need.requests:,} request{'' if need.requests == 1 else 's'}"
    ax.set_title(f"{model} in {dtype} on {memory} GB: room for {count} of {held:,} tokens", fontsize=11, pad=32)
    cut = f", the model's most and less than {context:,}," if held < context else ""
    return ax, (
        f"{model} in {dtype}, {batch} requests of {held:,} tokens{cut} in {memory} GB: weights "
        f"{need.weights / GB:.3g} GB, cache {need.cache / GB:.3g} GB, {verdict}; "
        f"room for {need.requests:,} such requests."
    )


def show_kv_cache() -> None:
    """Sliders for model, dtype, batch, context and memory; shows the size of the KV cache.

    Starts with a 13B model on a GPU with 40 GB. A context longer than the model's own is cut to it, and the figure
    notes this.
    """
    controls = {
        "model": Slider("model", tuple(CONFIGS), "opt-13b"),
        "dtype": Slider("weights' dtype", DTYPES, "bf16"),
        "batch": Slider("batch", tuple(2**k for k in range(9)), 8, "requests"),
        "context": Slider("context", tuple(2**k for k in range(7, 16)), 2048, "tokens"),
        "memory": Slider("memory", MEMORIES, 40, "GB"),
    }
    show(controls, draw_kv_cache)
