"""Which tree Medusa gets on a target: by hand from costs, and what is timed for it is what a step does."""

import pytest
import torch
from support.benches import TOKENS, WIDTHS, with_heads
from support.heads import heads_of

from bench import asking, fitting
from lessons_lib import Medusa, generate
from lessons_lib.decoding.probing import logits_along
from lessons_lib.decoding.proposers.medusa import regular
from lessons_lib.decoding.targets import DecoderTarget
from lessons_lib.measure.clock import Samples
from lessons_lib.models import LanguageModel, tiny
from lessons_lib.models.decoder import Decoder
from lessons_lib.models.medusa import save_heads

COSTS = {1: 1.0, 3: 1.0, 61: 1.1}
HEADS, ACCURACIES, EIGHT_BITS = fitting.heads, fitting.accuracies, fitting.eight_bits  # as they are without tests


@pytest.fixture(autouse=True)
def _tiny(monkeypatch, tmp_path):
    with_heads(monkeypatch, tmp_path)


def cheap(monkeypatch, v, c) -> None:
    """Steps cost so much, whatever this machine is busy with."""
    monkeypatch.setattr(fitting, "costs_of", lambda target, widths, *given: {width: v[width] for width in widths})
    monkeypatch.setattr(fitting, "shares", lambda target, widths, *given: dict.fromkeys(widths, 0.0) | c)


@pytest.mark.parametrize("v, c, nodes", [
    (COSTS, {}, 60),
    ({1: 1.0, 3: 1.0, 61: 3.0}, {}, 2),
    (COSTS, {61: 2.0}, 2),  # what a step does beside its forward counts, too
    ({1: 1.0, 3: 2.0, 61: 5.0}, {}, 2),  # without a tree there would be nothing to measure
])  # fmt: skip
def test_the_tree_is_the_fastest_by_what_wide_steps_cost(monkeypatch, v, c, nodes):
    cheap(monkeypatch, v, c)
    found = fitting.fitted(asking.model().target(), 3)
    assert len(found.tree.choices) == nodes
    assert found.overhead(61) == pytest.approx(v[61] + c.get(61, 0.0))


def test_a_compiled_target_gets_a_tree_of_a_width_that_it_is_compiled_for(monkeypatch):
    cheap(monkeypatch, COSTS, {})
    target = asking.model().target()
    target.widths = [1, 3]
    assert len(fitting.fitted(target, 3).tree.choices) == 2
    given_up = asking.model().target()
    given_up.widths = []  # nothing compiles here
    assert len(fitting.fitted(given_up, 3).tree.choices) == 60


def test_the_share_of_a_step_is_what_it_takes_beside_its_forward_over_a_one_row_forward(monkeypatch):
    target, fed, seen = asking.model().target(), [], {}
    run = target.run
    watched = lambda blocks: fed.append((len(blocks[0].tokens), blocks[0].cache.length())) or run(blocks)  # noqa: E731

    def in_turn(calls, repeats):
        for name, call in calls.items():
            fed.clear()
            call()
            seen[name] = [*fed]
        return {name: Samples((dict(zip(calls, (0.1, 0.3, 0.5, 2.0), strict=True))[name],)) for name in calls}

    monkeypatch.setattr(target, "run", watched)
    monkeypatch.setattr(fitting, "in_turn", in_turn)
    assert fitting.shares(target, WIDTHS, 3) == pytest.approx({1: 0.0, 3: 0.1, 61: 0.2})
    assert seen == {1: [], 3: [], 61: [], "forward": [(1, fitting.CACHED)]}


def test_what_is_timed_beside_the_forward_is_a_steps_own_choice():
    """Behind the prompt's own token it takes what decoding takes there, again and again."""
    target, prompt = asking.eager(), asking.prompt_of(fitting.CACHED)
    text, accepted = generate(target, prompt, max_new_tokens=TOKENS).ids, 0
    for seed in range(8):
        call = fitting.around(target, Medusa(heads_of(asking.model().network, 2, seed), regular(60, 4)))
        path, tokens = call()
        assert tokens == text[1 : 1 + len(tokens)] and len(path) == len(tokens) - 1
        assert call() == (path, tokens)
        accepted += len(path)
    assert accepted > 2


def test_the_widths_and_shares_of_a_real_target_are_measured():
    found = fitting.fitted(asking.model().target(), 3)
    assert set(found.v) == set(found.heads_share) == set(WIDTHS) and found.v[1] == 1 and found.heads_share[1] == 0
    assert len(found.tree.choices) in (2, 60)


def test_heads_and_their_accuracies_are_the_packages(monkeypatch, tmp_path):
    monkeypatch.setattr("lessons_lib.models.trained.OURS", tmp_path)
    network, card = asking.model().network, {"accuracies": [[0.5]]}
    save_heads(heads_of(network, 3), tmp_path / fitting.HEADS, "tiny", after=card)
    assert HEADS.__wrapped__().count == 3 and ACCURACIES() == [[0.5]]


def test_few_rows_and_many_have_the_same_weights_of_8_bits_and_the_model_keeps_its_own(monkeypatch):
    of = LanguageModel(tiny(dtype=torch.bfloat16, tied=True), None, "tiny", "cpu", torch.bfloat16)
    monkeypatch.setattr(asking, "model", lambda: of)
    before = {name: weight.clone() for name, weight in of.network.state_dict().items()}
    monkeypatch.setattr(asking, "run_once", lambda decoder, widths: DecoderTarget(decoder))
    target = EIGHT_BITS.__wrapped__()
    assert all(torch.equal(weight, before[name]) for name, weight in of.network.state_dict().items())
    matrices = [matrix for _, matrix in target.decoder.kernels.multiply.matrices.values()]
    assert len(matrices) == 4 * 2 + 1 and all(matrix.levels.dtype == torch.int8 for matrix in matrices)
    own = Decoder.from_transformers(of.network)
    assert torch.equal(target.decoder.embedding.weight, own.embedding.weight)
    assert target.decoder.head.weight.is_meta
    ids = [5, 80, 3, 3, 61, 17, 42, 9]
    wide = logits_along(target, ids, len(ids))[:4]
    narrow = torch.cat([logits_along(target, ids[:count], 1) for count in (1, 2, 3, 4)])
    assert (wide - narrow).abs().max() < 0.05 * wide.abs().max()
