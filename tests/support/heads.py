"""Medusa heads of a tiny model: some that know nothing, a target whose states are its own scores, and a small tree."""

import torch
from support.toys import ToyTarget

from lessons_lib.decoding.proposers.medusa import MedusaHeads

SIX = [(0,), (1,), (0, 0), (0, 1), (1, 0), (0, 0, 0)]  # choices of a tree that can be laid out by hand


@torch.no_grad()
def random_heads(lm_head: torch.Tensor, count: int = 3, seed: int = 0, **options) -> MedusaHeads:
    """Heads with large random weights, so that every one drafts something else."""
    heads = MedusaHeads(lm_head, count, **options)
    generator = torch.Generator().manual_seed(seed)
    for weight in heads.parameters():
        weight.copy_(torch.randn(weight.shape, generator=generator) * 2 * weight.shape[-1] ** -0.5)
    return heads


def heads_of(network, count: int = 3, seed: int = 0) -> MedusaHeads:
    """Random heads of a transformers model."""
    return random_heads(network.get_output_embeddings().weight, count, seed)


class OpenToy(ToyTarget):
    """A toy that offers states: the scores themselves, so that its LM head is the unit matrix."""

    offers = frozenset({"states"})

    def _run(self, model_input):
        scores = super()._run(model_input)
        scores.states = dict.fromkeys(model_input.after, scores.logits)
        return scores
