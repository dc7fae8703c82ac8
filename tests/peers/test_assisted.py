"""Assisted decoding against transformers' own, on the same tiny pairs: tokens, target passes, draft passes."""

from functools import partial

import pytest
import torch
from support.drafts import perturbed
from support.families import tiny_of

from lessons_lib import DraftModel, generate
from lessons_lib.decoding.proposers.draft_length import Confidence, Constant

START, N = [5, 80, 3, 3], 24


def theirs(network, draft, prompt, schedule: str, gamma: int, threshold: float):
    """-> (new tokens, tokens fed to each target pass, draft passes)."""
    config = draft.generation_config
    config.num_assistant_tokens, config.num_assistant_tokens_schedule = gamma, schedule
    config.assistant_confidence_threshold = threshold
    fed, calls = [], []
    hooks = [
        network.register_forward_pre_hook(lambda m, a, k: fed.append(k["input_ids"].shape[1]), with_kwargs=True),
        draft.register_forward_pre_hook(lambda m, a: calls.append(1)),
    ]
    ids = torch.tensor([prompt])
    options = dict(max_new_tokens=N, do_sample=False, attention_mask=torch.ones_like(ids))
    out = network.generate(ids, assistant_model=draft, **options)[0, len(prompt) :].tolist()
    for hook in hooks:
        hook.remove()
    return out, fed, len(calls)


@pytest.mark.parametrize("family", ["llama", "gpt_neox"])
@pytest.mark.parametrize("noise", [0.0, 0.05])
@pytest.mark.parametrize("schedule, length, gamma, threshold", [
    ("constant", Constant, 1, 0.0),
    ("constant", Constant, 4, 0.0),
    ("constant", partial(Confidence, threshold=0.5), 6, 0.5),
])  # fmt: skip
def test_tokens_and_passes_equal_transformers(family, noise, schedule, length, gamma, threshold):
    """transformers verifies its first draft together with the prompt. Beginning one token earlier, our prefill
    yields the prompt's last token, and from there on both take the same steps."""
    network = tiny_of(family)
    draft = perturbed(network, noise)
    first = generate(network, START, max_new_tokens=1).ids
    text, fed, calls = theirs(network, draft, START + first, schedule, gamma, threshold)
    out = generate(network, START, DraftModel(draft, length(gamma)), max_new_tokens=N + 1)
    assert out.ids == first + text
    assert [s.num_input_tokens for s in out.stats[1:]] == [fed[0] - len(START), *fed[1:]]
    assert sum(s.draft_calls for s in out.stats) == calls
