"""Weight names: transformers' are found again behind the decoder's fused matrices."""

import torch

from lessons_lib.models import tiny
from lessons_lib.models.checkpoint import fused_weights, their_names
from lessons_lib.models.decoder import Decoder


def test_their_names_are_the_inverse_of_ours():
    network = tiny(layers=3, tied=True)
    decoder = Decoder.from_transformers(network)
    state = network.state_dict()
    back = their_names(fused_weights(network, decoder.config), decoder.config)
    assert set(back) == set(state) - {"model.embed_tokens.weight", "lm_head.weight"}
    assert all(torch.equal(back[name], state[name]) for name in back)
