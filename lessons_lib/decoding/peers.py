"""Baselines for the decoding loop (lessons 06, 13): generate and assisted generation of transformers, all settings."""

from collections.abc import Sequence
from copy import deepcopy
from time import perf_counter
from typing import NamedTuple

import torch
from transformers import CompileConfig

from lessons_lib.decoding.generate import Output, StepStats
from lessons_lib.decoding.targets import TransformersTarget
from lessons_lib.models.hub import LanguageModel, quiet


def assist(draft, gamma: int) -> None:
    """Make a transformers draft model draft gamma tokens per step, by its generation config.

    transformers reads this there and not from the arguments of generate. By its defaults a draft ends after 20 tokens,
    or after a token with a probability below 0.4.
    """
    config = draft.generation_config
    config.num_assistant_tokens, config.num_assistant_tokens_schedule = gamma, "constant"
    config.assistant_confidence_threshold = 0.0


def by_transformers(network, prompt: Sequence[int], new: int, draft=None, **options) -> list[int]:
    """Generate exactly `new` greedy tokens after `prompt` (ids) with transformers -> the new ids.

    draft: a draft network for assisted generation. options: further arguments of generate, such as
    prompt_lookup_num_tokens.
    """
    return greedy_ids(network, prompt, max_new_tokens=new, min_new_tokens=new, assistant_model=draft, **options)


def greedy_ids(network, prompt: Sequence[int], **options) -> list[int]:
    """The new ids of transformers' own greedy generate after `prompt` (ids). options: further arguments of generate."""
    ids = torch.tensor([list(prompt)], device=network.device)
    greedy = {"do_sample": False, "repetition_penalty": 1.0, "pad_token_id": 0}  # some models come with a penalty
    with quiet():  # assisted generation warns about its own call of generate
        out = network.generate(ids, attention_mask=torch.ones_like(ids), **greedy, **options)
    return out[0, ids.shape[1] :].tolist()


def static_and_compiled(capacity: int) -> dict:
    """Arguments of transformers' generate for a static cache of `capacity` tokens and a compiled step, on any device.

    By default transformers compiles only on accelerators; the switch for other devices is private. Use one capacity for
    all texts, because another one is compiled again.
    """
    how = CompileConfig(mode=None)  # the default mode uses CUDA graphs
    how._compile_all_devices = True  # not a field of the dataclass: set it afterwards
    return {"cache_implementation": "static", "max_cache_len": capacity, "compile_config": how}


class EarlyExitRun(NamedTuple):
    """Result of `by_early_exit`: new ids, passes of all layers (prefill included) and of the first ones alone."""

    ids: list[int]
    passes: int
    draft_passes: int


def by_early_exit(network, prompt: Sequence[int], new: int, exit_layer: int, gamma: int | None = None) -> EarlyExitRun:
    """As `by_transformers`, with its own early exit: the first `exit_layer` layers draft `gamma` tokens per step.

    They have a second KV cache, and every verification runs all layers. gamma None: transformers' defaults, which stop
    a draft after a token with a probability below 0.4, at the latest after 20 tokens.
    """
    layers, settings = network.config.num_hidden_layers, network.generation_config
    ran: list[int] = []  # layers of each pass: transformers shortens the model's config while it drafts
    hook = network.register_forward_pre_hook(lambda module, given: ran.append(module.config.num_hidden_layers))
    network.generation_config = deepcopy(settings)
    if gamma is not None:
        assist(network, gamma)
    try:
        ids = by_transformers(network, prompt, new, assistant_early_exit=exit_layer)
    finally:
        hook.remove()
        network.generation_config = settings
    return EarlyExitRun(ids, ran.count(layers), ran.count(exit_layer))


class PassClock:
    """A streamer for transformers' generate that records a StepStats for each forward pass, prefill first.

    generate calls it once with the prompt, and then once per forward pass with the tokens that this pass committed.
    Only what such a streamer can see is set: lengths, committed tokens and the time of the whole step.
    """

    def __init__(self):
        self.stats: list[StepStats] = []
        self.length, self.since = 0, perf_counter()

    def put(self, tokens: torch.Tensor) -> None:
        now, count = perf_counter(), tokens.numel()
        if self.length:
            first = not self.stats
            taken = StepStats(self.length, self.length if first else count, is_prefill=first, committed=count)
            taken.t_total = now - self.since
            self.stats.append(taken)
        self.length, self.since = self.length + count, now

    def end(self) -> None:
        """Called by generate after the last token."""


class TransformersGenerate:
    """Greedy decoding by transformers' own generate: called with (prompt ids, max_new_tokens) -> Output.

    model: from `lessons_lib.load`. options: further arguments of generate, such as prompt_lookup_num_tokens. In the
    Output's stats, num_input_tokens counts committed tokens only, since generate does not tell how many it drafted.
    """

    def __init__(self, model: LanguageModel, **options):
        self.target, self.options = TransformersTarget(model.network, model.tokenizer), options

    def __call__(self, ids: Sequence[int], max_new_tokens: int) -> Output:
        clock, stop = PassClock(), {"max_new_tokens": max_new_tokens, "eos_token_id": list(self.target.eos) or None}
        new = greedy_ids(self.target.network, ids, streamer=clock, **stop, **self.options)
        text = self.target.tokenizer.decode(new, skip_special_tokens=True) if self.target.tokenizer else None
        return Output(new, text, clock.stats, "eos" if new and new[-1] in self.target.eos else "length")
