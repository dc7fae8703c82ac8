"""Baselines for the decoding loop (lesson 06): generate and assisted generation of transformers, with all settings."""

from collections.abc import Sequence
from time import perf_counter

import torch
from transformers import CompileConfig

from lessons_lib.decoding.generate import Output, StepStats
from lessons_lib.decoding.targets import TransformersTarget
from lessons_lib.models.hub import LanguageModel, quiet


def assist(draft, gamma: int, schedule: str = "constant", threshold: float = 0.0) -> None:
    """Set the number of draft tokens (gamma) of a transformers draft model, in its generation config.

    transformers reads it there and not from the arguments of generate. Its defaults: 20 tokens, schedule "constant",
    and drafting stops after a token with a probability below 0.4.
    """
    config = draft.generation_config
    config.num_assistant_tokens, config.num_assistant_tokens_schedule = gamma, schedule
    config.assistant_confidence_threshold = threshold


def by_transformers(network, prompt: Sequence[int], new: int, draft=None, **options) -> list[int]:
    """Generate exactly `new` greedy tokens after `prompt` (ids) with transformers -> the new ids.

    draft: a draft network for assisted generation. options: further arguments of generate, such as
    prompt_lookup_num_tokens.
    """
    ids = torch.tensor([list(prompt)], device=network.device)
    lengths = {"max_new_tokens": new, "min_new_tokens": new, "do_sample": False, "pad_token_id": 0}
    with quiet():  # assisted generation warns about its own call of generate
        out = network.generate(ids, attention_mask=torch.ones_like(ids), assistant_model=draft, **lengths, **options)
    return out[0, ids.shape[1] :].tolist()


def static_and_compiled(capacity: int) -> dict:
    """Arguments of transformers' generate for a static cache of `capacity` tokens and a compiled step, on any device.

    By default transformers compiles only on accelerators; the switch for other devices is private. Use one capacity for
    all texts, because another one is compiled again.
    """
    how = CompileConfig(mode=None)  # the default mode uses CUDA graphs
    how._compile_all_devices = True  # not a field of the dataclass: set it afterwards
    return {"cache_implementation": "static", "max_cache_len": capacity, "compile_config": how}


def count_passes(network, prompt: Sequence[int], new: int, draft=None) -> tuple[list[int], int]:
    """As `by_transformers` -> (new ids, number of forward passes of `network`, prefill included)."""
    calls: list[int] = []
    hook = network.register_forward_pre_hook(lambda module, given: calls.append(1))
    try:
        return by_transformers(network, prompt, new, draft), len(calls)
    finally:
        hook.remove()


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
        prompt, clock = torch.tensor([list(ids)], device=self.target.network.device), PassClock()
        greedy = {"do_sample": False, "repetition_penalty": 1.0, "pad_token_id": 0}
        stop = {"max_new_tokens": max_new_tokens, "eos_token_id": list(self.target.eos) or None}
        with quiet():
            mask = torch.ones_like(prompt)
            out = self.target.network.generate(
                prompt, attention_mask=mask, streamer=clock, **greedy, **stop, **self.options
            )
        new = out[0, len(ids) :].tolist()
        text = self.target.tokenizer.decode(new, skip_special_tokens=True) if self.target.tokenizer else None
        return Output(new, text, clock.stats, "eos" if new and new[-1] in self.target.eos else "length")
