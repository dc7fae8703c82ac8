"""Widget of the StreamingLLM lesson: sinks and window over the stored losses of a long text."""

import json
from collections.abc import Sequence
from functools import cache

import numpy as np
from matplotlib.axes import Axes

from lessons_lib.course.figures import GREEN, GREY, INK, ORANGE, axes
from lessons_lib.course.widgets import Slider, show
from lessons_lib.data import RESULTS

SINKS, WINDOWS = (0, 1, 2, 4, 8), (256, 512, 1020)


@cache
def stored_curves() -> dict:
    """The stored losses: tokens per average (`block`), distance of single losses (`every`), and curves by text."""
    return json.loads((RESULTS / "streaming-curves.json").read_text(encoding="utf-8"))


def smooth(means: Sequence[float], block: int) -> tuple[np.ndarray, np.ndarray]:
    """Middle token and mean loss of every four neighbouring blocks: single ones follow the text's ups and downs."""
    return block * (np.arange(len(means) - 3) + 2), np.convolve(means, np.full(4, 0.25), "valid")


def draw_streaming(sinks: int, window: int) -> tuple[Axes, str]:
    """Loss along 20,000 tokens of WikiText-2 with this cache and a dense one, and what a window computed anew saves."""
    stored = stored_curves()
    curves, block, every = stored["texts"]["wikitext"], stored["block"], stored["every"]
    ours, anew = curves[f"{sinks}+{window}"], np.array(curves[f"recomputed {4 + window}"]["at"])
    # the same tokens for both: those after the window was full
    first, at = window // every + 1, np.array(ours["at"])
    count = min(len(at), len(anew))
    lost = np.mean(at[first:count] - anew[first:count])
    named = f"{sinks} sink" + "s" * (sinks != 1)
    ax = axes((6.4, 3.8))
    ax.plot(*smooth(curves["dense"]["mean"], block), color=GREY, label="dense cache")
    ax.plot(*smooth(ours["mean"], block), color=GREEN if sinks else ORANGE, label=f"{named}, window {window:,}")
    ax.axvline(8192, color=INK, linestyle=":")
    ax.text(8350, 4.7, "context of 8,192 tokens", fontsize=10)
    ax.set(xlabel="token of the text", ylabel="loss, mean of 1,024 tokens [nats]", ylim=(1.5, 5))
    ax.set_xticks([0, 4000, 8192, 12_000, 16_000, 20_000], ["0", "4,000", "8,192", "12,000", "16,000", "20,000"])
    mean = np.mean(ours["mean"][1024 // block :])
    said = f"mean loss from token 1,024 on: {mean:.2f}; {lost:+.2f} over the window computed anew"
    title = f"{named}: mean loss {mean:.2f} from token 1,024 on,\n{lost:+.2f} over the window computed anew (not drawn)"
    ax.set_title(title, fontsize=11)
    ax.figure.legend(fontsize=9, ncols=3, loc="outside lower center", frameon=False)
    return ax, f"Loss along 20,000 tokens of Wikipedia with {named} and a window of {window:,}: {said}."


def show_streaming() -> None:
    """Sliders for sinks and window; shows the stored loss along the text."""
    controls = {
        "sinks": Slider("sinks", SINKS, 0),
        "window": Slider("window", WINDOWS, 1020, "tokens"),
    }
    show(controls, draw_streaming)
