"""Lesson 01's widget: what the lengths of prompt and output do to the latency of one request."""

from dataclasses import dataclass
from functools import partial

from matplotlib.axes import Axes

from lessons_lib.figures.latency import plot_parts
from lessons_lib.measure.config import ModelConfig
from lessons_lib.measure.hardware import Hardware
from lessons_lib.measure.roofline import Bracket, predict_decode_step, predict_prefill
from lessons_lib.widgets.controls import Slider, show

LENGTHS = tuple(2**k for k in range(4, 14))


@dataclass(frozen=True)
class Expected:
    """Predicted seconds of one request: until its first token, then for all the others."""

    ttft: Bracket
    decode: Bracket

    @property
    def total(self) -> Bracket:
        """End to end: TTFT and all decode steps."""
        return Bracket(self.ttft.low + self.decode.low, self.ttft.high + self.decode.high)


def predict_latency(shape: ModelConfig, hardware: Hardware, dtype: str, prompt: int, output: int) -> Expected:
    """`prompt` tokens in, `output` >= 1 tokens out: a prefill, which yields the first, and output - 1 steps.

    Step i attends to the prompt and the i tokens fed so far: the newest token is the one that is fed. ValueError for a
    dtype that was not measured.
    """
    steps = [predict_decode_step(shape, hardware, dtype, cached=prompt + i) for i in range(1, output)]
    decode = Bracket(sum(step.low for step in steps), sum(step.high for step in steps))
    return Expected(predict_prefill(shape, hardware, dtype, prompt), decode)


def draw_latency(shape: ModelConfig, hardware: Hardware, dtype: str, prompt: int, output: int) -> Axes:
    """The chosen request as stacked bars: both ends of the prediction, overlapping or one after the other.

    ValueError as `predict_latency`.
    """
    latency = predict_latency(shape, hardware, dtype, prompt, output)
    bars = {
        "fastest": {"prefill": latency.ttft.low, "decode": latency.decode.low},
        "slowest": {"prefill": latency.ttft.high, "decode": latency.decode.high},
    }
    ax = plot_parts(bars, "seconds per request")
    ax.set_title(_headline(latency, output), fontsize=11, pad=32)
    return ax


def describe_latency(shape: ModelConfig, hardware: Hardware, dtype: str, prompt: int, output: int) -> str:
    """The figure in words; ValueError as `predict_latency`."""
    latency = predict_latency(shape, hardware, dtype, prompt, output)
    return f"{shape.name} in {dtype}, {prompt:,} tokens in, {output:,} out: {_headline(latency, output)}."


def show_latency(shape: ModelConfig, hardware: Hardware, dtype: str) -> None:
    """Sliders for prompt and output length over the predicted latency of one request on this machine.

    ValueError for a dtype that was not measured. The model's context must be of 32 tokens or more.
    """
    lengths = [length for length in LENGTHS if 2 * length <= shape.max_position_embeddings]
    controls = {
        "prompt": Slider("prompt", lengths, min(512, lengths[-1]), "tokens"),
        "output": Slider("output", lengths, min(128, lengths[-1]), "tokens"),
    }
    show(controls, partial(draw_latency, shape, hardware, dtype), partial(describe_latency, shape, hardware, dtype))


def _headline(latency: Expected, output: int) -> str:
    """The result in one line."""
    if output == 1:
        return f"the only token after {_seconds(latency.ttft)}"
    share = latency.ttft.low / latency.total.low
    return f"first token {_seconds(latency.ttft)}, all {_seconds(latency.total)}, {share:.0%} of it prefill"


def _seconds(bracket: Bracket) -> str:
    return f"{bracket.low:.3g} to {bracket.high:.3g} s"
