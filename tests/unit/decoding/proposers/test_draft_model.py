"""Assisted decoding: the target's own text and law, the forwards that the guesses save, and the draft's cache."""

import functools
import math
from collections import Counter
from itertools import product
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.drafts import decoder_target, perturb, perturbed
from support.laws import exact_law
from support.toys import ToyTarget

from lessons_lib import DraftModel, Greedy, Sampling, generate
from lessons_lib.caches.contiguous import ContiguousCache
from lessons_lib.caches.static import StaticCache
from lessons_lib.decoding.blocks import Block
from lessons_lib.decoding.generate import new_row
from lessons_lib.decoding.proposers.draft_length import Adaptive, Confidence, Heuristic
from lessons_lib.decoding.row import step
from lessons_lib.decoding.targets import DecoderTarget, TransformersTarget
from lessons_lib.measure.fit import chi_square
from lessons_lib.measure.speculation import acceptance_rate, expected_tokens
from lessons_lib.models import LanguageModel, tiny
from lessons_lib.models.decoder import Decoder

PROMPT, N = [5, 80, 3, 3, 61], 24
TARGETS = [pytest.param(TransformersTarget, id="transformers"), pytest.param(decoder_target, id="decoder")]
SHAPES = [
    pytest.param(dict(), id="chain"),
    pytest.param(dict(children=(3, 2)), id="top-k tree"),
    pytest.param(dict(mode="iid"), id="drawn chain"),
    pytest.param(dict(mode="iid", children=(3, 2)), id="drawn tree"),
    pytest.param(dict(mode="without_replacement", children=(2, 1, 2)), id="tree without replacement"),
]


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture(scope="module")
def network():
    return tiny()


@pytest.fixture(scope="module")
def greedy(network) -> list[int]:
    """The new tokens of transformers' own greedy decoding."""
    return network.generate(torch.tensor([PROMPT]), max_new_tokens=N, do_sample=False)[0, len(PROMPT) :].tolist()


# the same tokens as plain greedy decoding


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("draft", TARGETS)
def test_greedy_text_is_kept_with_any_target_as_draft(network, greedy, target, draft, shape):
    proposer = DraftModel(draft(perturbed(network, 0.03)), 4, generator=seeded(0), **shape)
    out = generate(target(network), PROMPT, proposer, max_new_tokens=N)
    assert out.ids == greedy
    assert 0 < sum(s.accepted for s in out.trace) < sum(s.depth for s in out.trace)  # both outcomes took place


@pytest.mark.parametrize("shape", [dict(), dict(children=(3, 2))], ids=["chain", "tree"])
@pytest.mark.parametrize("family", ["gpt_neox", "opt", "gemma", "mistral"])
def test_greedy_text_is_kept_in_any_family_of_transformers(family, shape):
    network = tiny(family=family)
    text = network.generate(torch.tensor([PROMPT]), max_new_tokens=N, do_sample=False)[0, len(PROMPT) :].tolist()
    for noise in (0.0, 0.05):
        out = generate(network, PROMPT, DraftModel(perturbed(network, noise), 4, **shape), max_new_tokens=N)
        assert out.ids == text
        assert sum(s.accepted for s in out.trace) > 0


@functools.cache
def models(seed: int, noise: float):
    network = tiny(seed=seed)
    return decoder_target(network), decoder_target(perturbed(network, noise))


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 3),
    noise=st.sampled_from([0.0, 0.02, 0.05, 0.2]),
    prompt=st.lists(st.integers(0, 96), min_size=1, max_size=9),
    gamma=st.integers(1, 6),
    count=st.integers(1, 20),
    children=st.lists(st.integers(1, 3), max_size=2),
    mode=st.sampled_from(["point", "iid", "without_replacement"]),
)
def test_greedy_text_is_kept_for_random_prompts_drafts_and_shapes(seed, noise, prompt, gamma, count, children, mode):
    target, draft = models(seed, noise)
    plain = generate(target, prompt, max_new_tokens=count).ids
    proposer = DraftModel(draft, gamma, mode, children, generator=seeded(seed))
    out = generate(target, prompt, proposer, max_new_tokens=count)
    assert out.ids == plain
    assert all(1 <= s.committed <= s.depth + 1 and s.depth <= gamma for s in out.trace)


def test_weights_that_change_between_steps_do_not_change_the_text(network, greedy):
    draft = perturbed(network, 0.0)
    row = new_row(TransformersTarget(network), PROMPT, DraftModel(draft, 3), Greedy(), N)
    with torch.no_grad():
        while row.finish is None:
            step(TransformersTarget(network), [row])
            perturb(draft, 0.02, seed=len(row.ids))
    assert row.new == greedy


# how many forwards


@pytest.mark.parametrize("gamma", [1, 2, 4, 7])
@pytest.mark.parametrize("target", TARGETS)
def test_a_draft_equal_to_the_target_is_always_right(network, greedy, target, gamma):
    target = target(network)
    for count in {1, 2, gamma, gamma + 1, gamma + 2, N}:
        out = generate(target, PROMPT, DraftModel(target, gamma), max_new_tokens=count)
        assert out.ids == greedy[:count]
        assert len(out.trace) == 1 + math.ceil((count - 1) / (gamma + 1))
        left = [count - sum(s.committed for s in out.trace[:i]) for i in range(1, len(out.trace))]
        assert [s.draft_calls for s in out.trace] == [0] + [min(gamma, most - 1) for most in left]


def test_drawing_from_the_target_itself_is_always_right_too(network):
    target = decoder_target(network)
    proposer = DraftModel(target, 4, "iid", sampling=Sampling(0.8, top_p=0.9), generator=seeded(1))
    out = generate(target, PROMPT, proposer, Sampling(0.8, top_p=0.9), 41, generator=seeded(2))
    assert len(out.trace) == 1 + 40 / 5


def test_a_tree_needs_fewer_forwards_than_its_first_branch(network):
    chain, tree = (
        generate(network, PROMPT, DraftModel(perturbed(network, 0.05), 3, children=c), max_new_tokens=60).trace
        for c in [(), (3, 2)]
    )
    assert len(tree) < len(chain)
    assert {(s.proposed, s.draft_calls) for s in tree if s.depth == 3} == {(3 + 6 + 6, 3)}


def test_accepted_tokens_follow_the_capped_geometric_law():
    """p and q the same after every prefix, so that each guess is accepted with probability sum(min(p, q)) = 0.7."""
    p, q = ([0.5, 0.3, 0.2], [0.2, 0.5, 0.3])
    draft = DraftModel(constant(q), 3, "iid", generator=seeded(3))
    steps = [s for seed in range(8) for s in sampled(constant(p), draft, seed, 200).trace[1:-3]]
    committed = torch.tensor([float(s.committed) for s in steps])
    error = committed.std() / len(steps) ** 0.5
    assert abs(committed.mean() - expected_tokens(0.7, 3)) < 3 * error
    assert acceptance_rate(steps) == pytest.approx(0.7, abs=0.03)


# the law of what is sampled


def constant(p) -> ToyTarget:
    return ToyTarget(lambda prefix: torch.tensor(p, dtype=torch.float64).log(), len(p))


def random_law(size: int, seed: int) -> ToyTarget:
    """After every prefix another distribution."""

    @functools.cache
    def logits(prefix):
        return torch.randn(size, generator=seeded(hash((seed, prefix)) % 2**31), dtype=torch.float64)

    return ToyTarget(logits, size)


def sampled(target, proposer, seed: int, count: int):
    return generate(target, [0], proposer, Sampling(), count, generator=seeded(seed))


def law_of(target, draft: DraftModel, count: int) -> dict:
    return exact_law(lambda: tuple(generate(target, [0], draft, Sampling(), count).ids))


def far_from(law: dict, target, count: int) -> float:
    """The largest error of a probability."""
    assert sum(law.values()) == pytest.approx(1)
    worst = 0.0
    for text in product(range(target.vocab_size), repeat=count):
        rows = [target.logits((0, *text[:i])).softmax(-1) for i in range(count)]
        worst = max(worst, abs(law.get(text, 0) - math.prod(float(p[t]) for p, t in zip(rows, text, strict=True))))
    return worst


LAWS = [
    pytest.param(3, 4, dict(mode="point"), id="greedy draft"),
    pytest.param(3, 4, dict(mode="iid"), id="chain"),
    pytest.param(2, 5, dict(mode="iid"), id="long chain"),
    pytest.param(3, 4, dict(mode="point", children=(2,)), id="top-k tree"),
    pytest.param(2, 4, dict(mode="iid", children=(2, 2)), id="drawn tree"),
    pytest.param(3, 3, dict(mode="without_replacement", children=(2,)), id="without replacement"),
    pytest.param(2, 4, dict(mode="without_replacement", children=(2, 2)), id="tree without replacement"),
    pytest.param(2, 5, dict(mode="iid", gamma=Confidence(3, 0.6)), id="stops behind doubt"),
    pytest.param(3, 4, dict(mode="iid", sampling=Sampling(2.0, top_k=2)), id="other sampling than the target's"),
]


@pytest.mark.parametrize("size, count, shape", LAWS)
def test_every_text_has_exactly_the_targets_probability(size, count, shape):
    target, shape = random_law(size, seed=1), dict(gamma=count - 2) | shape
    law = law_of(target, DraftModel(random_law(size, seed=2), **shape), count)
    assert far_from(law, target, count) < 1e-12


class Boastful(DraftModel):
    """Takes the most probable token but says that it drew it from q."""

    def _draw(self, scores, q, count):
        return [int(scores.argmax())]


class Picky(DraftModel):
    """Throws away a drawn token that the draft itself holds improbable."""

    def propose(self, ids, limit):
        proposal = super().propose(ids, limit)
        doubtful = proposal.tokens and proposal.q[-1][proposal.tokens[0]] < 0.4
        return type(proposal)() if doubtful else proposal


@pytest.mark.parametrize("wrong", [Boastful, Picky])
def test_a_biased_draft_is_caught(wrong):
    target = random_law(3, seed=1)
    assert far_from(law_of(target, wrong(random_law(3, seed=2), 2, "iid"), 4), target, 4) > 0.01


class Reseeded(DraftModel):
    """Starts the same random numbers anew for every step."""

    def propose(self, ids, limit):
        self.generator.manual_seed(0)
        return super().propose(ids, limit)


@pytest.mark.parametrize("kind, caught", [(DraftModel, False), (Reseeded, True)])
def test_sampled_pairs_follow_the_targets_law(kind, caught):
    """Chi-square over what follows each of four tokens; the target is a Markov chain."""
    p, q = ((2 * torch.randn(2, 4, 4, generator=seeded(5), dtype=torch.float64)).softmax(-1)).unbind()
    target, draft = (ToyTarget(lambda prefix, t=t: t[prefix[-1]].log(), 4) for t in (p, q))
    counts = torch.zeros(4, 4)
    proposer = kind(draft, 3, "iid", generator=seeded(6))
    for seed in range(10):
        text = sampled(target, proposer, seed, 200).ids
        for pair, times in Counter(zip(text, text[1:], strict=False)).items():
            counts[pair] += times
    least = min(chi_square(row, law)[1] for row, law in zip(counts, p, strict=True))
    assert (least < 1e-3 / 4) == caught


def test_one_generator_for_draws_and_judgement_repeats_a_text(network):
    def text(seed):
        generator, draft = seeded(seed), perturbed(network, 0.05)
        proposer = DraftModel(draft, 3, "iid", generator=generator)
        return generate(network, PROMPT, proposer, Sampling(), N, generator=generator).ids

    assert text(1) == text(1) != text(2)


# the draft's cache


def entries(cache) -> list[torch.Tensor]:
    if isinstance(cache, ContiguousCache):
        return [buffer[:, : cache.length()] for buffer in cache.keys + cache.values]
    return [kept[0] for layer in cache.inner.layers for kept in (layer.keys, layer.values)]


@pytest.mark.parametrize("noise", [0.0, 0.05])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", TARGETS)
def test_after_every_step_the_drafts_cache_is_that_of_the_committed_text(network, kind, shape, noise):
    draft, target = kind(perturbed(network, noise)), decoder_target(network)
    proposer = DraftModel(draft, 3, generator=seeded(4), **shape)
    row = new_row(target, PROMPT, proposer, Greedy(), N)
    with torch.no_grad():
        while row.finish is None:
            before = len(row.ids)
            step(target, [row])
            done, cache = row.trace[-1], proposer.cache
            if done.depth:  # what was accepted, less the deepest level, which was never fed
                assert cache.length() == before + min(done.accepted, done.depth - 1)
            if cache.length():
                fresh = draft.new_cache(len(row.ids))
                draft.run([Block(row.ids[: cache.length()], range(cache.length()), None, fresh, 1)])
                for found, expected in zip(entries(cache), entries(fresh), strict=True):
                    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("fed_again, noise", [(2, 0.0), (1, 5.0)])
def test_the_draft_is_fed_two_tokens_after_full_acceptance_and_one_otherwise(network, fed_again, noise):
    draft, fed = TransformersTarget(perturbed(network, noise)), []
    run = draft.run
    draft.run = lambda blocks: fed.append(len(blocks[0].tokens)) or run(blocks)
    generate(network, PROMPT, DraftModel(draft, 3), max_new_tokens=14)
    assert fed[:6] == [len(PROMPT) + 1, 1, 1, fed_again, 1, 1]


def test_a_new_text_begins_with_an_empty_draft_cache(network, greedy):
    proposer = DraftModel(network, 4)
    generate(network, [9, 9, 9], proposer, max_new_tokens=N)
    out = generate(network, PROMPT, proposer, max_new_tokens=N)
    assert out.ids == greedy and acceptance_rate(out.trace) == 1


# where texts end


@pytest.mark.parametrize("shape", [dict(), dict(children=(2, 2))], ids=["chain", "tree"])
@pytest.mark.parametrize("at", range(8))
def test_an_end_token_ends_the_text_wherever_it_is_drafted(network, greedy, at, shape):
    eos = greedy[at]
    target = decoder_target(network, eos=(eos,))
    out = generate(target, PROMPT, DraftModel(network, 3, **shape), max_new_tokens=N)
    assert out.ids == greedy[: greedy.index(eos) + 1]
    assert out.finish == "eos"
    assert len(out.ids) == 1 or acceptance_rate(out.trace) == 1


def test_nothing_is_drafted_behind_an_end_token(network, greedy):
    eos = greedy[2]
    assert greedy.index(eos) == 2
    out = generate(decoder_target(network, eos=(eos,)), PROMPT, DraftModel(network, 10), max_new_tokens=N)
    assert [s.proposed for s in out.trace] == [s.draft_calls for s in out.trace] == [0, 2]


def test_a_text_held_back_from_its_end_goes_on_as_it_does_alone(network, greedy):
    target = decoder_target(network, eos=(greedy[2],))
    plain = generate(target, PROMPT, max_new_tokens=N, min_new_tokens=12)
    assert generate(target, PROMPT, DraftModel(network, 4), max_new_tokens=N, min_new_tokens=12).ids == plain.ids


@pytest.mark.parametrize("count, calls", [(1, [0]), (2, [0, 0]), (3, [0, 1])])
def test_a_small_budget_is_not_overdrafted(network, greedy, count, calls):
    out = generate(network, PROMPT, DraftModel(network, 5), max_new_tokens=count)
    assert out.ids == greedy[:count]
    assert [s.draft_calls for s in out.trace] == calls


def test_a_draft_of_smaller_context_falls_silent_in_time(network, greedy):
    short = decoder_target(tiny(context=16))
    out = generate(network, PROMPT, DraftModel(short, 4), max_new_tokens=N)
    assert out.ids == greedy
    assert all(s.length_before + s.draft_calls <= 17 for s in out.trace if s.draft_calls)
    assert sum(s.accepted for s in out.trace) == 9  # entries 0 to 15 predict tokens up to the seventeenth


@pytest.mark.parametrize("shape", [dict(), dict(children=(4, 2))], ids=["chain", "tree"])
def test_a_draft_with_a_static_cache_drafts_as_deep_as_it_can_hold(network, greedy, shape):
    class Tight(DecoderTarget):
        def new_cache(self, tokens):
            c = self.decoder.config
            return StaticCache(c.layers, c.kv_heads, c.head_dim, torch.float64, capacity=22)

    draft = Tight(Decoder.from_transformers(network))
    draft.context = 22
    out = generate(network, PROMPT, DraftModel(draft, 4, **shape), max_new_tokens=N)
    assert out.ids == greedy
    assert sum(s.accepted for s in out.trace) > 8


# several rows, schedules


def test_rows_of_one_step_each_with_its_own_draft_decode_as_if_alone(network):
    prompts = [[5, 80, 3], [61, 17, 42, 9, 9, 9, 1], [7]]
    target, draft = decoder_target(network), decoder_target(perturbed(network, 0.03))
    texts = [generate(target, prompt, max_new_tokens=N).ids for prompt in prompts]
    shapes = [dict(), dict(children=(2, 2)), dict(mode="iid", generator=seeded(0))]
    proposers = [DraftModel(draft, 3, **shape) for shape in shapes]
    rows = [new_row(target, p, by, Greedy(), N) for p, by in zip(prompts, proposers, strict=True)]
    rows[1].chunk = 3
    with torch.no_grad():
        while unfinished := [row for row in rows if row.finish is None]:
            step(target, unfinished)
    assert [row.new for row in rows] == texts
    assert all(sum(s.accepted for s in row.trace) > 0 for row in rows)


def test_the_schedule_learns_what_became_of_its_guesses(network, greedy):
    out = generate(network, PROMPT, DraftModel(network, Heuristic(1)), max_new_tokens=N)
    assert [s.depth for s in out.trace] == [0, 1, 3, 5, 7, 2]  # the budget caps the last
    wrong = DraftModel(tiny(seed=7), Adaptive(0.2, lambda width: 1 + 0.1 * width))
    out = generate(network, PROMPT, wrong, max_new_tokens=60)
    assert out.ids[:N] == greedy
    assert out.trace[1].depth > 0 and sum(s.depth == 0 for s in out.trace[20:]) > 30


def test_an_end_inside_the_guesses_counts_as_accepted(network, greedy):
    schedule, seen = Heuristic(4), []
    schedule.observe = lambda *counts: seen.append(counts)
    target = decoder_target(network, eos=(greedy[3],))
    generate(target, PROMPT, DraftModel(network, schedule), max_new_tokens=N)
    assert seen == [(3, 3, 3)]


def test_low_confidence_stops_behind_the_doubtful_token():
    sure, doubtful = [0.97, 0.02, 0.01], [0.4, 0.3, 0.3]
    draft = ToyTarget(lambda prefix: torch.tensor(doubtful if len(prefix) == 4 else sure).log(), 3)
    out = generate(constant(sure), [0], DraftModel(draft, Confidence(8, 0.5)), max_new_tokens=20)
    assert [s.depth for s in out.trace[:3]] == [0, 3, 8]  # guesses 2 and 3 are sure, the third is not, and verified


# whose tokens they are


class Words:
    """The parts of a tokenizer that are asked for; ids 0 to `size` - 1."""

    all_special_tokens, eos_token_id, chat_template = (), None, None

    def __init__(self, size: int):
        self.size = size

    def get_vocab(self):
        return {f"w{i}": i for i in range(self.size)}

    def __call__(self, text, add_special_tokens=True):
        return SimpleNamespace(input_ids=[len(word) for word in text.split()])

    def decode(self, ids, **_):
        return " ".join(f"w{i}" for i in ids)


@pytest.mark.parametrize("mode", ["point", "iid"])
@pytest.mark.parametrize("sizes", [(97, 112), (112, 97), (97, 97)], ids=str)
def test_paddings_of_one_tokenizer_may_differ(sizes, mode):
    target, draft = (TransformersTarget(tiny(vocab_size=size), Words(90)) for size in sizes)
    plain = generate(target, PROMPT, max_new_tokens=60).ids
    proposer = DraftModel(draft, 3, mode, generator=seeded(0))
    assert generate(target, PROMPT, proposer, max_new_tokens=60).ids == plain
    proposer.reset(target, PROMPT)
    proposal = proposer.propose(PROMPT, 5)
    assert max(proposal.tokens) < 90
    for row in proposal.q.values():
        assert row.shape == (sizes[0],) and not row[90:].any()
        assert float(row.sum()) == pytest.approx(1)


def test_an_id_that_is_no_token_silences_the_draft():
    target, draft = (TransformersTarget(tiny(vocab_size=size), Words(90)) for size in (112, 97))
    plain = generate(target, [5, 110, 3], max_new_tokens=12).ids
    out = generate(target, [5, 110, 3], DraftModel(draft, 3), max_new_tokens=12)
    assert out.ids == plain and not any(s.draft_calls for s in out.trace)


def test_a_language_model_may_be_target_and_draft(network, greedy):
    model = LanguageModel(network, Words(97), "tiny", "cpu", torch.float64)
    assert generate(model, PROMPT, DraftModel(model), max_new_tokens=N).ids == greedy


@pytest.mark.parametrize("target, draft, said", [
    ((97, None), (98, None), "vocabularies of one size, not 97 and 98"),
    ((97, 97), (97, None), "the draft has no tokenizer to compare"),
    ((97, None), (97, 97), "the target has no tokenizer to compare"),
    ((97, 96), (97, 95), "token 'w95' is 95 in one and missing in the other"),
    ((97, 97), (96, 97), "ids up to 96, but target and draft have logits for 97 and 96"),
])  # fmt: skip
def test_a_draft_of_another_vocabulary_is_refused(target, draft, said):
    target, draft = (TransformersTarget(tiny(vocab_size=v), words and Words(words)) for v, words in (target, draft))
    with pytest.raises(ValueError, match=said):
        generate(target, PROMPT, DraftModel(draft), max_new_tokens=4)


@pytest.mark.parametrize("bad, said", [
    (dict(mode="best"), "mode 'best' is unknown; one of point, iid"),
    (dict(gamma=0), "gamma must be at least 1, not 0"),
    (dict(children=(2, 0)), "children must be at least 1 at every depth"),
    (dict(sampling=Sampling()), 'mode "point" draws nothing'),
])  # fmt: skip
def test_impossible_settings_are_refused(network, bad, said):
    with pytest.raises(ValueError, match=said):
        DraftModel(network, **bad)


def test_what_cannot_decode_is_no_draft():
    with pytest.raises(TypeError, match="str cannot decode"):
        DraftModel("smollm2-135m")
