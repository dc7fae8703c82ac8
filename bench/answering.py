"""A program in a process of its own that answers one JSON line with another."""

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from threading import Timer


@contextmanager
def answering(
    name: str, command: Sequence[str], environment: dict[str, str], limit: float
) -> Iterator[Callable[[dict], dict]]:
    """A function that asks the program; what it started is gone afterwards, and sleeps between two questions.

    limit: seconds for an answer. RuntimeError with `name` and the end of its log if none comes.
    """
    with tempfile.TemporaryFile() as log:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": log, "text": True}
        process = subprocess.Popen(command, env=os.environ | environment, start_new_session=True, **pipes)

        def ask(question: dict) -> dict:
            start = time.perf_counter()
            try:
                return answer(process, question, limit)
            except (OSError, ValueError):
                why = "gave no answer" if time.perf_counter() - start < limit else f"took longer than {limit} s"
                log.seek(0)
                said = log.read().decode(errors="replace").strip()[-1000:]
                raise RuntimeError(f"{name}'s process {why}; the end of its log: {said}") from None

        try:
            yield ask
        finally:
            tell(process, signal.SIGKILL)
            with suppress(OSError):  # what it has not read
                process.stdin.close()
            process.stdout.close()
            process.wait()


def answer(process: subprocess.Popen, question: dict, limit: float) -> dict:
    """One line in, one out; killed after `limit` seconds. OSError or ValueError if there is no answer."""
    timer = Timer(limit, tell, [process, signal.SIGKILL])
    timer.start()
    try:
        tell(process, signal.SIGCONT)
        print(json.dumps(question), file=process.stdin, flush=True)
        return json.loads(process.stdout.readline())
    finally:
        timer.cancel()
        tell(process, signal.SIGSTOP)  # a server that polls would take a core from what is measured next


def tell(process: subprocess.Popen, what: signal.Signals) -> None:
    """Send a signal to the process and all that it started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, what)
