"""The command `lessons`. Each file here adds its commands to the parser, with the function that runs them.

generate, compare, probe    for any causal model of transformers; they need no clone
serve                       OpenAI's API in front of our engine, for decoders that it computes
course                      run, lab, sweep, test, bench: for a clone of the course
common                      what they share: opening a model, refusing in one sentence
"""

import argparse
import io
import os
import sys

from lessons_lib.cli import compare, course, generate, probe, serve
from lessons_lib.cli.common import Refused


def main(arguments: list[str] | None = None) -> int:
    """Run a command line (default: sys.argv); returns the exit status."""
    options = parser().parse_args(arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):  # a redirected one may lack characters of a text
        sys.stdout.reconfigure(errors="replace")
    try:
        status = options.run(options)
        sys.stdout.flush()  # here, so that a reader that has ended is noticed
        return status
    except Refused as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nstopped", file=sys.stderr)
        return 130
    except BrokenPipeError:  # who reads the output, such as `head`, has ended; the last flush must not fail again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def parser() -> argparse.ArgumentParser:
    """Command-line parser of all commands."""
    top = argparse.ArgumentParser(
        prog="lessons",
        usage="lessons COMMAND ... (`lessons COMMAND --help` shows its options, with examples)",
        description="Try techniques on a model, and work with the course. `make help` lists more, for its developers.",
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for part in (generate, compare, probe, serve, course):
        part.add(commands)
    return top
