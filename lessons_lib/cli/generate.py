"""`lessons generate`: continue a prompt, print the text as it is made, and count the forward passes."""

import argparse
import sys

from lessons_lib.cli.common import add_command, add_model, open_model, refusing
from lessons_lib.decoding.generate import Output, after_prefill, generate, tokens_per_pass
from lessons_lib.decoding.proposers import Proposer
from lessons_lib.decoding.proposers.draft_model import DraftModel
from lessons_lib.decoding.proposers.early_exit import EarlyExit
from lessons_lib.decoding.proposers.jacobi import Jacobi
from lessons_lib.decoding.proposers.lookahead import Lookahead
from lessons_lib.decoding.proposers.prompt_lookup import PromptLookup
from lessons_lib.decoding.sampling import Sampling
from lessons_lib.decoding.text import Prompt, TextStream
from lessons_lib.models import load
from lessons_lib.models.hub import LanguageModel

PROPOSERS = {"prompt-lookup": PromptLookup, "lookahead": Lookahead, "jacobi": Jacobi}
EXAMPLES = """
lessons generate "Why is the sky blue?" --stats
lessons generate "$(cat notes.txt) Summarize these notes." --model smollm2-135m --proposer prompt-lookup --stats
"""


def add(commands) -> None:
    """Add the command."""
    what = "continue a prompt with a model, and count its forward passes"
    command = add_command(commands, "generate", run, what, EXAMPLES)
    command.add_argument("prompt", metavar="PROMPT", help="a chat model reads it as a question, others continue it")
    add_model(command)
    drafting = command.add_mutually_exclusive_group()
    drafting.add_argument("--proposer", choices=PROPOSERS, help="what drafts tokens; default: nothing (plain decoding)")
    drafting.add_argument("--draft", metavar="MODEL", help="a small model with the same tokenizer drafts tokens")
    drafting.add_argument("--exit-layer", metavar="E", type=int, help="the model's own first E layers draft tokens")
    command.add_argument("--temperature", type=float, default=0.0, help="0 (default) takes the most likely token")
    command.add_argument("--max-new-tokens", type=int, default=128, metavar="N", help="default: 128")
    command.add_argument("--stats", action="store_true", help="then print forward passes and speed, to stderr")


def run(options: argparse.Namespace) -> int:
    """Stream the text to stdout, then the counts to stderr."""
    model = open_model(options)
    with refusing(options.model):
        proposer = drafter(options, model)
        acceptance = Sampling(options.temperature) if options.temperature else None
        stream, prompt = TextStream(model.tokenizer), as_prompt(model, options.prompt)
        try:
            out = generate(model, prompt, proposer, acceptance, options.max_new_tokens, on_tokens=stream)
        finally:
            print(flush=True)  # after Ctrl-C as well, the next line begins at its left
    if options.stats:
        print(counted(out), file=sys.stderr)
    return 0


def drafter(options: argparse.Namespace, model: LanguageModel) -> Proposer | None:
    """The proposer that the options name."""
    if options.draft:
        return DraftModel(load(options.draft, model.device, model.dtype))
    if options.exit_layer is not None:
        return EarlyExit(options.exit_layer)
    return PROPOSERS[options.proposer]() if options.proposer else None


def as_prompt(model: LanguageModel, text: str) -> Prompt:
    """The text as a message of the user if the model has a chat template, else as it is."""
    return [{"role": "user", "content": text}] if model.tokenizer.chat_template else text


def counted(out: Output) -> str:
    """Forward passes, tokens per pass and speed of a text, on one line."""
    steps = after_prefill(out.stats)
    said = f"{len(out.ids)} tokens in {len(out.stats)} forward passes"
    if not steps:
        return f"{said} (the prompt's)"
    prefill, tau = out.stats[0].t_total, tokens_per_pass(out.stats)
    speed = sum(step.committed for step in steps) / sum(step.t_total for step in steps)
    return f"{said}: {prefill:.2f} s for the prompt, then {tau:.2f} tokens per pass and {speed:.1f} tokens/s"
