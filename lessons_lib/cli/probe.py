"""`lessons probe`: what this machine can do, how fast it could decode a model, and which technique has how much room.

All numbers but the measured pass come from the cost model: seconds = bytes / bandwidth + overhead, and the width curve.
"""

import argparse
from collections.abc import Mapping

from lessons_lib.cli.common import Refused, add_command, add_model, open_model, refusing, sized
from lessons_lib.decoding.probing import width_times
from lessons_lib.decoding.targets import as_target
from lessons_lib.measure import cost, machine, tables
from lessons_lib.measure.config import CONFIGS, ELEMENT_BYTES, ModelConfig
from lessons_lib.models.device import pick
from lessons_lib.models.hub import PACKAGED, LanguageModel

EXAMPLES = """
lessons probe
lessons probe --model llama-2-7b --dtype fp32
"""
ABOUT = """
Measure this machine's bandwidth and arithmetic and, with the model, a forward pass over one token and over several.
From these follow the most tokens per second that the model's bytes allow here, and the most that compiling,
quantizing, drafting and batching could gain. The weights of some models are not needed, as their shapes are known:
"""
TRY = """
"At most" is what remains if all else were free; expect less. To try what has room: compiling with
generate(load(MODEL).target(compiled=True), PROMPT) for Llama-like models (lesson 03 for others), drafting and quantized
weights with `lessons compare`, batching with `lessons serve`.
""".strip()
WIDTHS = (1, 2, 4, 8, 16)
CACHED = 256  # tokens in the cache before a timed pass
REPEATS = 5
ROUNDED = {"W8A16": ELEMENT_BYTES["int8"], "W4A16": ELEMENT_BYTES["int4"]}  # bytes of a weight


def add(commands) -> None:
    """Add the command."""
    what = "say what this machine can do, and which technique has how much room"
    known = ", ".join(name for name in CONFIGS if name not in PACKAGED)
    add_model(add_command(commands, "probe", run, what, EXAMPLES, f"{ABOUT}{known}."))


def run(options: argparse.Namespace) -> int:
    """Measure this machine and the model, and print rates, limits and room."""
    with refusing(options.model):
        device, dtype = pick(options.device, options.dtype)
        of_shape = options.model in CONFIGS and options.model not in PACKAGED
        model = None if of_shape else open_model(options)
        if model and not sized(model):
            raise Refused(
                f"`lessons probe` predicts from the sizes of attention layers, and {options.model} "
                f"({model.network.config.model_type}) has none; `lessons compare` measures any causal model."
            )
        shape = model.shape if model else CONFIGS[options.model]
        print(machine.environment(device, dtype))
        rates = measured(device, dtype)
    print(f"\n{rates}\n\n{tables.text(*limits(shape, rates, dtype))}\n")
    with refusing(options.model):
        if model:
            (step, v), how = passes(model), f"measured after {cached(shape)} tokens"
        else:
            step, v = cost.predict_decode_step(shape, rates, dtype), rates.widths.get(dtype) or {1: 1.0}
            how = "predicted from its shape"
    speed = f"{step * 1e3:.3g} ms ({tables.number(1 / step)} tokens/s)"
    print(f"{shape.name} in {dtype}, {how}: a forward pass over one token takes {speed},")
    print(f"one over w tokens takes v(w) times as long: {curve(v)}\n")
    print(f"{tables.text(*room(shape, rates, dtype, step, v))}\n\n{TRY}")
    return 0


def measured(device: str, dtype: str) -> machine.Hardware:
    """This machine's rates, measured anew. They are kept for the lessons unless other programs disturb them."""
    dtypes = list(dict.fromkeys((*machine.default_dtypes(device), dtype)))
    if machine.busy_warning():
        print("These rates are not kept for the lessons.")
        return machine.measure(device, dtypes)
    return machine.probe(device, dtypes, refresh=True)


def limits(shape: ModelConfig, rates: machine.Hardware, dtype: str) -> tables.Table:
    """Headings and cells: the most tokens per second with weights in each number format.

    dtype: that of activations and cache beside rounded weights.
    """
    weight_bytes = {dtype: ELEMENT_BYTES[dtype] for dtype in rates.matvec_bandwidth} | ROUNDED
    cells = []
    for name, each in weight_bytes.items():
        moved, seconds = best_pass(shape, rates, each, dtype if name in ROUNDED else name)
        cells.append([name, f"{tables.number(moved / 1e6)} MB", tables.number(1 / seconds)])
    heading = f"{shape.name} after {cached(shape)} tokens, weights in"
    return [heading, "read per token", "at most tokens/s"], cells


def best_pass(shape: ModelConfig, rates: machine.Hardware, weight_bytes: float, dtype: str) -> tuple[float, float]:
    """Bytes that a pass over one token must read, weights and cache, and the seconds that this takes at least."""
    element = cost.cache_element_bytes(dtype)
    read = cost.bytes_decode(shape, cached=cached(shape), weight_bytes=weight_bytes, cache_bytes=element)
    return read, cost.limit(cost.flops_decode(shape, cached=cached(shape)), read, rates, dtype)


def cached(shape: ModelConfig) -> int:
    """Tokens in the cache before a timed pass; fewer where the context is short."""
    return min(CACHED, shape.max_position_embeddings - max(WIDTHS)) if shape.max_position_embeddings else CACHED


def passes(model: LanguageModel) -> tuple[float, dict[int, float]]:
    """Seconds of a forward pass over one token, and the width curve {w: v(w)}."""
    prompt = [token % model.shape.vocab_size for token in range(1, 1 + cached(model.shape))]
    took = width_times(as_target(model), prompt, WIDTHS, model.device, REPEATS)
    return took[1].median, cost.width_curve(took)


def curve(v: Mapping[int, float]) -> str:
    """A width curve in words."""
    return ", ".join(f"v({w}) {value:.2f}" for w, value in v.items())


def room(shape: ModelConfig, rates: machine.Hardware, dtype: str, step: float, v: Mapping[int, float]) -> tables.Table:
    """Headings and cells: the most that each technique could gain over a pass of `step` seconds, and its condition.

    Draft tokens are all accepted and cost nothing; sequences of a batch cost as much as tokens of one sequence.
    """

    def reading(weight_bytes: float) -> float:
        """The speedup of a pass that takes no longer than reading its bytes."""
        return step / best_pass(shape, rates, weight_bytes, dtype)[1]

    condition = "if reading its bytes were all that a pass does"
    how = "compiling, a CUDA graph" if rates.device.startswith("cuda") else "compiling"
    rows = [[how, reading(ELEMENT_BYTES[dtype]), condition]]
    for name, each in ROUNDED.items():
        size = f"{each:g} {'byte' if each == 1 else 'bytes'}"
        rows.append([f"the same in {name}", reading(each), f"and a weight took {size}"])
    if gamma := cost.best_gamma(1.0, 0.0, v, most=max(v) - 1):
        least = cost.break_even(0.0, v, most=max(v) - 1)
        condition = f"if all of {gamma} draft tokens were accepted; free ones pay if more than {least:.0%} are"
        rows.append(["drafting", cost.walltime_factor(1.0, gamma, 0.0, v), condition])
    else:
        rows.append(["drafting", 1.0, "a wider pass costs more than it could yield"])
    batch = max(v, key=lambda width: width / v[width])
    rows.append(["batching", batch / v[batch], f"tokens/s of {batch} sequences together"])
    cells = [[name, f"{gain:.2f} x", tables.number(gain / step), condition] for name, gain, condition in rows]
    return ["room for", "at most", "tokens/s", "condition"], cells
