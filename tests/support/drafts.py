"""Drafts that agree with a model now and then: the model itself with noise in its weights."""

import copy

import torch


@torch.no_grad()
def perturbed(network, noise: float):
    """A copy of the network with normal noise on every weight, `noise` times as wide as the tensor's own spread."""
    network, generator = copy.deepcopy(network), torch.Generator().manual_seed(0)
    for weight in network.parameters():
        weight.add_(noise * weight.std() * torch.randn(weight.shape, generator=generator, dtype=weight.dtype))
    return network
