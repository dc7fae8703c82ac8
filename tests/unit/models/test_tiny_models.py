"""The tiny models of all families that other tests stand on."""

import pytest
import torch
from support.families import FAMILIES, tiny_of

from lessons_lib.models import tiny

IDS = torch.randint(97, (4, 30), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_logits_are_sharp_enough_to_choose_by(family):
    logits = tiny_of(family)(IDS).logits
    best, second = logits.topk(2).values.unbind(-1)
    assert logits.dtype == torch.float64 and logits.shape == (4, 30, 97)
    assert (best - second).min() > 1e-6  # no ties: rounding in float64 changes no choice
    assert len(logits.argmax(-1).unique()) > 20  # and the choice depends on the text


@pytest.mark.parametrize("family", FAMILIES)
def test_the_seed_decides_and_the_global_random_state_stays(family):
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first, again, other = (tiny_of(family, seed=seed).state_dict() for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not any(torch.equal(first[name], other[name]) for name in first if first[name].numel() > 1)


def test_the_librarys_own_is_the_llama_of_these():
    own, same = tiny(layers=3, seed=1).state_dict(), tiny_of("llama", 3, seed=1).state_dict()
    assert own.keys() == same.keys() and all(torch.equal(own[name], same[name]) for name in own)
