"""`lessons probe`: what this machine can do, and how fast it can at best decode a model."""

import argparse

from lessons_lib.cli.common import add_command, add_model, refusing
from lessons_lib.measure import cost, machine
from lessons_lib.measure.config import CONFIGS, ELEMENT_BYTES
from lessons_lib.models import load
from lessons_lib.models.device import pick_device

EXAMPLES = """
lessons probe
lessons probe --model llama-2-7b --device cpu
"""


def add(commands) -> None:
    """Add the command."""
    what = "measure this machine, and say how fast it can at best decode a model"
    add_model(add_command(commands, "probe", run, what, EXAMPLES))


def run(options: argparse.Namespace) -> int:
    """Measure this machine anew, and print how fast it can decode a model at best."""
    with refusing(options.model):
        device = pick_device(options.device)
        shape = CONFIGS.get(options.model) or load(options.model, device).shape
    print(machine.environment(device))
    if machine.busy_warning():  # lessons would use these rates for predictions
        print("These rates are not kept for the lessons.")
        rates = machine.measure(device, machine.default_dtypes(device))
    else:
        rates = machine.probe(device, refresh=True)
    print(f"\n{rates}\n")
    for dtype in rates.matvec_bandwidth:
        read = cost.bytes_decode(shape, weight_bytes=ELEMENT_BYTES[dtype])
        fastest = 1 / cost.limit(cost.flops_decode(shape), read, rates, dtype)
        print(f"{shape.name} in {dtype}: at most {fastest:.3g} tokens/s, as each reads {read / 1e6:,.0f} MB of weights")
    return 0
