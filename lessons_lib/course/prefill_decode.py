"""Figures and widget of the lesson on prefill and decode: where the time of one request goes."""

from collections.abc import Mapping
from functools import partial

from matplotlib.axes import Axes

from lessons_lib.course.figures import COLORS, PAPER, WIDTH, axes, plot_parts, with_bar_legend
from lessons_lib.course.widgets import Slider, show
from lessons_lib.measure.clock import Timeline
from lessons_lib.measure.config import ModelConfig
from lessons_lib.measure.cost import Bracket, predict_decode_step, predict_prefill
from lessons_lib.measure.machine import Hardware

LENGTHS = tuple(2**k for k in range(4, 14))


def plot_timeline(requests: Mapping[str, Timeline]) -> Axes:
    """Arrival of each token of a request: the wait for the first (TTFT), then the gaps between tokens (ITL)."""
    ax = axes((WIDTH, 1.4 + 0.5 * len(requests)))
    for label, timeline in requests.items():
        ax.barh(label, timeline.ttft, color=COLORS["prefill"], height=0.6)
        at = timeline.ttft
        for gap in timeline.itl:
            ax.barh(label, gap, left=at, color=COLORS["decode"], height=0.6, edgecolor=PAPER, linewidth=0.5)
            at += gap
    ax.set(xlabel="seconds since the request was handed in")
    said = {"until the first token (TTFT)": COLORS["prefill"], "between two tokens (ITL)": COLORS["decode"]}
    return with_bar_legend(ax, said)


def predict_latency(
    shape: ModelConfig, hardware: Hardware, dtype: str, prompt: int, output: int
) -> tuple[Bracket, Bracket]:
    """Predicted seconds of a request with `prompt` input and `output` >= 1 output tokens: (TTFT, all decode steps).

    The prefill yields the first token. Step i attends to the prompt and to i generated tokens.
    """
    steps = [predict_decode_step(shape, hardware, dtype, cached=prompt + i) for i in range(1, output)]
    decode = Bracket(sum(step.low for step in steps), sum(step.high for step in steps))
    return predict_prefill(shape, hardware, dtype, prompt), decode


def draw_latency(shape: ModelConfig, hardware: Hardware, dtype: str, prompt: int, output: int) -> tuple[Axes, str]:
    """Both ends of the prediction as stacked bars: memory traffic and compute overlapping, or one after the other."""
    ttft, decode = predict_latency(shape, hardware, dtype, prompt, output)
    seconds, share = "{:.3g} to {:.3g} s".format, ttft.low / (ttft.low + decode.low)
    total = seconds(ttft.low + decode.low, ttft.high + decode.high)
    said = f"first token {seconds(ttft.low, ttft.high)}, all {total}, {share:.0%} of it prefill"
    bars = {"fastest": {"prefill": ttft.low, "decode": decode.low}}
    ax = plot_parts(bars | {"slowest": {"prefill": ttft.high, "decode": decode.high}}, "seconds per request")
    ax.set_title(said, fontsize=11, pad=32)
    return ax, f"{shape.name} in {dtype}, {prompt:,} tokens in, {output:,} out: {said}."


def show_latency(shape: ModelConfig, hardware: Hardware, dtype: str) -> None:
    """Sliders for prompt and output length; shows the predicted latency of one request on this machine.

    The model's context must be at least 32 tokens.
    """
    lengths = [length for length in LENGTHS if 2 * length <= shape.max_position_embeddings]
    controls = {
        "prompt": Slider("prompt", lengths, min(512, lengths[-1]), "tokens"),
        "output": Slider("output", lengths, min(128, lengths[-1]), "tokens"),
    }
    show(controls, partial(draw_latency, shape, hardware, dtype))
