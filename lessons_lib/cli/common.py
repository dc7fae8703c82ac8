"""What the commands share: options, opening a model, and refusing in one sentence."""

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from lessons_lib.models import ModelUnavailable, load
from lessons_lib.models.device import out_of_memory
from lessons_lib.models.hub import OFFLINE, LanguageModel
from lessons_lib.progress import first_line


class Refused(Exception):
    """A command cannot do what it is asked for; the message says in one sentence what to do."""


def add_command(
    commands, name: str, run: Callable[[argparse.Namespace], int], what: str, examples: str, description: str = ""
) -> argparse.ArgumentParser:
    """Add a command that `run` executes. what: one line for the list of commands. examples: lines to try."""
    lines = "\n".join(f"  {line.strip()}" for line in examples.strip().splitlines())
    command = commands.add_parser(
        name,
        help=what,
        prog=f"lessons {name}",
        description=description or f"{what[0].upper()}{what[1:]}.",
        epilog=f"examples:\n{lines}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.set_defaults(run=run)
    return command


def add_model(command: argparse.ArgumentParser) -> None:
    """Add the options that `open_model` reads."""
    what = f"a name such as {OFFLINE} (default), the folder of a transformers checkpoint, or a hub id (owner/model)"
    command.add_argument("--model", default=OFFLINE, help=what)
    command.add_argument("--device", default="auto", help="cpu, cuda, mps or auto (default)")
    command.add_argument("--dtype", default="auto", help="fp32, bf16, fp16 or auto (default): the fastest one here")


def open_model(options: argparse.Namespace) -> LanguageModel:
    """Load the model that the options name."""
    with refusing(options.model):
        return load(options.model, options.device, options.dtype)


def sized(model: LanguageModel) -> bool:
    """Whether the model's config has the sizes from which `lessons probe` predicts; without attention it has not."""
    try:
        return bool(model.shape)
    except ValueError:
        return False


@contextmanager
def refusing(model: str) -> Iterator[None]:
    """Turn errors that a user can mend into Refused. model: its name, for what does not fit into memory."""
    try:
        yield
    except (ValueError, ModelUnavailable) as error:
        raise Refused(str(error)) from error
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
        raise Refused(
            f"{model} does not fit into this device's memory ({first_line(error)}); use a smaller model, another "
            "--device, a --dtype of 16 bits, or shorter prompts."
        ) from error
