"""`lessons serve`: a model behind OpenAI's API, on our engine."""

import argparse

from lessons_lib.cli.common import Refused, add_command, add_model, open_model, refusing
from lessons_lib.models.decoder import decoder_config

EXAMPLES = """
lessons serve --max-num-seqs 16
lessons serve --model path/to/checkpoint --port 8001 --max-model-len 4096 --num-blocks 1024
"""
ABOUT = """\
Serve a Llama-like model (Llama, Mistral, SmolLM) on our engine, for learning: completions and chat
completions as OpenAI has them, streamed or not, /v1/models, /health, and /metrics for Prometheus.
It has no access control. Ctrl-C ends it."""


def add(commands) -> None:
    """Add the command."""
    what = "serve a Llama-like model behind OpenAI's API, for learning"
    command = add_command(commands, "serve", run, what, EXAMPLES, ABOUT)
    add_model(command)
    command.add_argument("--host", default="127.0.0.1", help="address to listen on; default: for this machine only")
    command.add_argument("--port", type=int, default=8000, metavar="N", help="default: 8000; 0: any that is free")
    running = "requests that may run at once; default: 16"
    command.add_argument("--max-num-seqs", type=int, default=16, metavar="N", help=running)
    longest = "most tokens of a prompt and its answer together; default: as many as model and blocks have room for"
    command.add_argument("--max-model-len", type=int, metavar="N", help=longest)
    batched = "most tokens in a forward pass; longer prompts are fed in parts; default: 512"
    command.add_argument("--max-num-batched-tokens", type=int, default=512, metavar="N", help=batched)
    blocks = "KV cache blocks of 16 tokens; default: room for 1,024 tokens of each running request"
    command.add_argument("--num-blocks", type=int, metavar="N", help=blocks)
    queue = "requests that may wait; more are refused with status 429; default: 1024"
    command.add_argument("--max-queue", type=int, default=1024, metavar="N", help=queue)


def run(options: argparse.Namespace) -> int:
    """Serve until Ctrl-C."""
    try:
        from lessons_lib.serving import server  # needs the extra `serve`
    except ModuleNotFoundError as error:
        raise Refused(f"{error}.") from error
    model = open_model(options)
    try:
        decoder_config(model.network.config)
    except ValueError as error:
        why = str(error).partition(";")[0]  # what follows is for Python: another target, which the engine does not run
        raise Refused(
            f"`lessons serve` takes Llama-like models (Llama, Mistral, SmolLM), but {why}, as {options.model} needs; "
            "`lessons generate` and `lessons compare` take any causal model."
        ) from error
    names = "max_num_seqs", "max_model_len", "max_num_batched_tokens", "num_blocks", "max_queue"
    with refusing(options.model):
        worker = server.make_worker(model, **{name: getattr(options, name) for name in names})
        listening = server.listen(options.host, options.port)
    with listening:
        server.serve(worker, listening)
    return 0
