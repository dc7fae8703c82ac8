"""Copies of a network around the same tensors (lessons 03, 09, 10): what is changed in one leaves the other whole."""

import copy
from collections.abc import Container

from torch import nn


def sharing_copy(network: nn.Module, but: Container[int] = ()) -> nn.Module:
    """New modules around the network's own parameters and buffers. but: ids of tensors that are copied as well."""
    shared = {id(t): t for t in (*network.parameters(), *network.buffers()) if id(t) not in but}
    return copy.deepcopy(network, shared)
