"""Heads begin as the model's own head, count their parameters right, and come back from a file as they were."""

import pytest
import torch
import torch.nn.functional as F
from support.families import tiny_of
from support.heads import heads_of, random_heads

from lessons_lib import Medusa
from lessons_lib.decoding.draft_tree import ModelInput
from lessons_lib.decoding.proposers.medusa import (
    MedusaHeads,
    load_heads,
    own_parameters,
    save_heads,
    shared_parameters,
)
from lessons_lib.decoding.targets import TransformersTarget
from lessons_lib.models import LanguageModel, ModelUnavailable, read_card, tiny, trained

FORMS = [dict(), dict(blocks=3), dict(root_rank=4), dict(blocks=2, root_rank=4)]
IDS = [5, 80, 3, 61]


def states_of(target):
    """Final states and scores of a short text."""
    block = ModelInput(IDS, range(len(IDS)), None, target.new_cache(8), len(IDS), after=("final",))
    (scores,) = target.run([block])
    return scores.states["final"], scores.logits


@pytest.mark.parametrize(
    "family, form", [("llama", form) for form in FORMS] + [(family, {}) for family in ("gemma", "gpt_neox", "opt")]
)
@torch.no_grad()
def test_untrained_heads_score_as_the_models_own(family, form):
    network = tiny_of(family)
    final, logits = states_of(TransformersTarget(network))
    found = MedusaHeads(network.get_output_embeddings().weight, 3, **form)(final, chosen=IDS)
    assert found.shape == (len(IDS), 3, 97)
    for head in range(3):
        torch.testing.assert_close(found[:, head], logits, rtol=0, atol=1e-12)


@torch.no_grad()
def test_a_head_is_its_blocks_and_then_a_head():
    """By the paper's formula, W2 (h + silu(W1 h + b)), block after block, each with weights of its own."""
    random = torch.Generator().manual_seed(1)
    lm_head, h = torch.randn(9, 4, generator=random), torch.randn(3, 4, generator=random)
    heads = random_heads(lm_head, 2, blocks=2)
    for k in range(2):
        x = h
        for block in heads.stacks[k]:
            x = x + F.silu(x @ block.weight.T + block.bias)
        torch.testing.assert_close(heads(h)[:, k], x @ lm_head.T)
    first, second = heads.stacks[0]
    assert not torch.equal(first.weight, second.weight) and torch.equal(heads(h, 1), heads(h)[:, :1])


@torch.no_grad()
def test_a_head_that_reads_the_root_does_so_in_its_first_block():
    """silu(W h + b + B A e), e the LM head's row of the chosen token, of root mean square 1."""
    random = torch.Generator().manual_seed(1)
    lm_head, h = torch.randn(9, 4, generator=random), torch.randn(3, 4, generator=random)
    heads = random_heads(lm_head, 2, blocks=2, root_rank=3)
    e = lm_head[[7, 0, 7]] / lm_head[[7, 0, 7]].square().mean(-1, keepdim=True).sqrt()
    for k in range(2):
        (down, up), (first, second) = heads.root_readers[k], heads.stacks[k]
        x = h + F.silu(h @ first.weight.T + first.bias + e @ down.weight.T @ up.weight.T)
        x = x + F.silu(x @ second.weight.T + second.bias)
        torch.testing.assert_close(heads(h, chosen=[7, 0, 7])[:, k], x @ lm_head.T)
    assert torch.equal(heads(h, 1, [7, 0, 7]), heads(h, 2, [7, 0, 7])[:, :1])
    with pytest.raises(ValueError, match="also read the tokens that were chosen"):
        heads(h)


@torch.no_grad()
def test_trimmed_heads_choose_among_the_tokens_they_keep_and_score_them_as_before():
    random = torch.Generator().manual_seed(0)
    lm_head, h, kept = torch.randn(9, 4, generator=random), torch.randn(3, 4, generator=random), [1, 4, 5, 8]
    heads, others = random_heads(lm_head, 2, root_rank=3), [0, 2, 3, 6, 7]
    whole = heads(h, chosen=[7, 0, 7])  # the root may be a token that is not kept
    assert torch.equal(heads.top_tokens(h, 3, chosen=[7, 0, 7]), whole.topk(3).indices) and heads.scored == 9
    heads.trim(torch.tensor(kept))
    scores = heads(h, chosen=[7, 0, 7])
    torch.testing.assert_close(scores[..., kept], whole[..., kept])
    assert scores[..., others].eq(-torch.inf).all() and heads.scored == 4
    assert torch.equal(heads.top_tokens(h, 3, 1, [7, 0, 7]), scores[:, :1].topk(3).indices)
    with pytest.raises(ValueError, match="the tree is 1 deep and 5 ranks wide, too much for 2 heads over 4 tokens"):
        Medusa(heads, [(rank,) for rank in range(5)])


def test_what_begins_at_random_begins_alike_every_time_and_differs_between_heads():
    once, again = (MedusaHeads(torch.eye(5), 2, root_rank=3) for _ in range(2))
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(once.parameters(), again.parameters(), strict=True))
    assert not torch.equal(once.root_readers[0][0].weight, once.root_readers[1][0].weight)


def test_parameters_are_as_many_as_the_formula_says():
    heads = MedusaHeads(torch.zeros(97, 32), 3)
    assert sum(weight.numel() for weight in heads.parameters()) == shared_parameters(3, 32)


@pytest.mark.parametrize("width, vocab_size, published", [
    (2048, 50_272, 4.28e8),  # OPT-1.3B; Speculative Streaming (Bhendawade et al. 2024, arXiv 2402.11131), table 1
    (2048, 51_200, 4.36e8),  # Phi-1.3B
    (4096, 32_000, 5.91e8),  # OpenLlama-7B
])  # fmt: skip
def test_four_heads_with_their_own_lm_heads_count_as_published(width, vocab_size, published):
    assert own_parameters(4, width, vocab_size) == pytest.approx(published, rel=2e-3)
    assert own_parameters(4, width, vocab_size) - shared_parameters(4, width) == 4 * width * vocab_size


def test_the_models_own_head_is_not_trained():
    lm_head = torch.nn.Parameter(torch.randn(9, 4))
    MedusaHeads(lm_head, 2)(torch.ones(1, 4)).sum().backward()
    assert lm_head.grad is None


def test_the_gradient_at_the_start_is_not_zero():
    """W = 0 is no dead end: silu has a slope there."""
    heads = MedusaHeads(torch.randn(9, 4), 2)
    heads(torch.ones(1, 4)).square().sum().backward()
    assert all(weight.grad.abs().max() > 0 for weight in heads.parameters())


@pytest.mark.parametrize("bad", [dict(count=0), dict(blocks=0)])
def test_no_heads_are_refused(bad):
    with pytest.raises(ValueError, match="at least one head of one block"):
        MedusaHeads(torch.eye(3), **bad)


# as a file


def model(name: str = "tiny", **options) -> LanguageModel:
    network = tiny(**options)
    return LanguageModel(network, None, name, "cpu", network.dtype)


@pytest.mark.parametrize("form", FORMS)
@torch.no_grad()
def test_heads_come_back_as_they_were_in_the_models_format(tmp_path, form):
    of = model()
    heads = random_heads(of.network.get_output_embeddings().weight, 3, **form)
    save_heads(heads, tmp_path / "heads", "tiny", steps=7)
    back = load_heads(tmp_path / "heads", of, count=3)
    states = torch.randn(5, 32, generator=torch.Generator().manual_seed(0)).double()
    torch.testing.assert_close(back(states, None, range(5)), heads(states, None, range(5)), rtol=0, atol=0.05)
    assert all(weight.dtype == torch.float64 and not weight.requires_grad for weight in back.parameters())
    assert read_card(tmp_path / "heads")["steps"] == 7
    assert back.lm_head.data_ptr() == of.network.get_output_embeddings().weight.data_ptr()
    half = load_heads(tmp_path / "heads", model(dtype=torch.bfloat16))
    assert half(states.bfloat16(), chosen=range(5)).dtype == torch.bfloat16


@torch.no_grad()
def test_trimmed_heads_come_back_trimmed(tmp_path):
    of = model()
    heads = random_heads(of.network.get_output_embeddings().weight, 2)
    heads.trim(torch.tensor([3, 5, 96]))
    save_heads(heads, tmp_path, "tiny")
    back = load_heads(tmp_path, of)
    assert back.kept.tolist() == [3, 5, 96] and back.rows.dtype == torch.float64 and read_card(tmp_path)["kept"] == 3
    assert set(back.top_tokens(torch.ones(2, 32).double(), 3).flatten().tolist()) == {3, 5, 96}


@pytest.mark.parametrize("other, count, said", [
    (model("other"), None, r"holds heads of 'tiny' \(vocabulary 97, width 32\), not of 'other' \(97, 32\); load that"),
    (model(vocab_size=98), None, r"not of 'tiny' \(98, 32\)"),
    (model(width=64), None, r"not of 'tiny' \(97, 64\)"),
    (model(), 4, "holds 3 heads, not 4"),
])  # fmt: skip
def test_heads_of_another_model_or_number_are_refused_in_one_sentence(tmp_path, other, count, said):
    save_heads(heads_of(tiny(), 3), tmp_path, "tiny")
    with pytest.raises(ValueError, match=said):
        load_heads(tmp_path, other, count)


def test_heads_of_the_package_load_by_name(tmp_path, monkeypatch):
    monkeypatch.setattr(trained, "OURS", tmp_path)
    with pytest.raises(ModelUnavailable, match="holds no heads; train some with `python -m lessons_lib.training heads"):
        load_heads("tiny-heads", model())
    save_heads(heads_of(tiny(), 3), tmp_path / "tiny-heads", "tiny")
    assert load_heads("tiny-heads", model()).count == 3
