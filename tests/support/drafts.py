"""Drafts that agree with a model now and then: the model itself with noise in its weights."""

import copy

import torch


@torch.no_grad()
def perturb(network, noise: float, seed: int = 0):
    """Add normal noise to every weight, `noise` times as wide as the tensor's own spread."""
    generator = torch.Generator().manual_seed(seed)
    for weight in network.parameters():
        weight.add_(noise * weight.std() * torch.randn(weight.shape, generator=generator, dtype=weight.dtype))
    return network


def perturbed(network, noise: float):
    """A copy with noise; the original stays as it is."""
    return perturb(copy.deepcopy(network), noise)
