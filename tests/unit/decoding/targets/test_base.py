"""What all targets share: proposers that need what a target does not offer are refused, and end tokens are known."""

import pytest
import torch
from support.oracle import PROMPT, N

from lessons_lib.decoding.generate import generate
from lessons_lib.decoding.proposers import Proposer
from lessons_lib.decoding.targets import TransformersTarget, Unsupported
from lessons_lib.models import tiny


def test_a_proposer_whose_needs_are_not_offered_is_refused(network):
    class Demanding(Proposer):
        needs = frozenset({"wings"})

    with pytest.raises(Unsupported, match="Demanding needs wings, which TransformersTarget does not offer"):
        generate(network, PROMPT, Demanding())


@pytest.mark.parametrize("eos, known", [(-1, ()), ([-1], ()), (97, ()), ([96, 97], (96,)), ([0, -1], (0,)), (3, (3,))])
def test_ends_that_the_model_has_no_logits_for_are_left_out(eos, known):
    network = tiny()
    network.generation_config.eos_token_id = eos
    assert TransformersTarget(network).eos == known
    out = generate(network, PROMPT, max_new_tokens=N, min_new_tokens=N // 2)
    options = dict(max_new_tokens=N, min_new_tokens=N // 2, do_sample=False, pad_token_id=0)
    assert PROMPT + out.ids == network.generate(torch.tensor([PROMPT]), **options)[0].tolist()
