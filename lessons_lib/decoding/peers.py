"""Baselines for the decoding loop (lesson 06): generate and assisted generation of transformers, with all settings."""

from collections.abc import Sequence

import torch
from transformers import CompileConfig

from lessons_lib.models.hub import quiet


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
