"""Peers to run beside the loop (lesson 06): transformers' own assisted generation, with its settings spelled out."""

from collections.abc import Sequence

import torch
from transformers import CompileConfig

from lessons_lib.models.hub import quiet


def assist(draft, gamma: int, schedule: str = "constant", threshold: float = 0.0) -> None:
    """Set how many tokens a transformers draft drafts. It reads that from the draft's own configuration, not generate.

    Its defaults: 20 tokens, schedule "constant", none behind a token that the draft gives less than 0.4.
    """
    config = draft.generation_config
    config.num_assistant_tokens, config.num_assistant_tokens_schedule = gamma, schedule
    config.assistant_confidence_threshold = threshold


def by_transformers(network, prompt: Sequence[int], new: int, draft=None, **options) -> list[int]:
    """`new` greedy tokens (T,) after `prompt` by transformers' generate, assisted by a draft network if given.

    options: further ones of generate, such as prompt_lookup_num_tokens. ValueErrors are those of its generate.
    """
    ids = torch.tensor([list(prompt)], device=network.device)
    lengths = {"max_new_tokens": new, "min_new_tokens": new, "do_sample": False, "pad_token_id": 0}
    with quiet():  # its assisted generation warns about how it calls its own generate
        out = network.generate(ids, attention_mask=torch.ones_like(ids), assistant_model=draft, **lengths, **options)
    return out[0, ids.shape[1] :].tolist()


def static_and_compiled(capacity: int) -> dict:
    """Options of transformers' generate for a static cache of so many tokens and a compiled step, on every device.

    By itself it compiles on accelerators only; what tells it otherwise is private. A longer cache would be
    compiled anew, so that one capacity serves all texts.
    """
    how = CompileConfig(mode=None)  # its own default is CUDA graphs
    how._compile_all_devices = True  # an attribute and no field: valid only when it is set afterwards
    return {"cache_implementation": "static", "max_cache_len": capacity, "compile_config": how}


def count_passes(network, prompt: Sequence[int], new: int, draft=None) -> tuple[list[int], int]:
    """As `by_transformers`, and how many forward passes of `network` it took, the one over the prompt included."""
    calls: list[int] = []
    hook = network.register_forward_pre_hook(lambda module, given: calls.append(1))
    try:
        return by_transformers(network, prompt, new, draft), len(calls)
    finally:
        hook.remove()
