"""Whatever proposes, the text is the target's own: greedy tokens exactly, sampled ones with their exact distribution.

A new proposer is an entry of PROPOSERS for greedy decoding, and one of SAMPLED for sampling. DraftModel and EarlyExit,
which sample their draft tokens, and Medusa, which reads states, have their own tests of distributions.
"""

from collections.abc import Callable
from functools import cache
from itertools import product
from math import prod
from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.distributions import correction_from_p, exact_distribution
from support.examples import examples
from support.families import FAMILIES, tiny_of
from support.heads import SIX, heads_of
from support.oracle import exact
from support.proposers import Forgetful, FreshExits, TextLookahead
from support.targets import TARGETS, Tight, assert_holds, decoder_target, targets
from support.toys import ToyTarget, choosing, continued, whimsical

import lessons_lib
from lessons_lib import DraftModel, EarlyExit, Greedy, Jacobi, Lookahead, Medusa, PromptLookup, Sampling, generate
from lessons_lib.decoding import sampling
from lessons_lib.decoding.generate import new_sequence, step, tokens_per_pass
from lessons_lib.decoding.proposers import Proposer
from lessons_lib.decoding.targets import TransformersTarget
from lessons_lib.measure.cost import padded_cost
from lessons_lib.models import tiny

V, N = 11, 30
PROMPT = [5, 3, 3, 1, 7, 5, 3, 3, 1]
EVERYWHERE = [(i,) for i in range(V)] + [(i, j) for i in range(V) for j in range(3)]


def adaptive() -> Forgetful:
    """A schedule that drafts nothing at times, and at others two tokens or four."""
    return Forgetful(0.0, padded_cost({1: 1.0, 3: 1.3, 5: 1.7}), most=4, probe_every=None)


# name -> network -> proposer for a target of that network
PROPOSERS = {
    "prompt-lookup": lambda network: PromptLookup(),
    "prompt-lookup-transformers": lambda network: PromptLookup(rule="transformers"),
    "prompt-lookup-original": lambda network: PromptLookup(num_tokens=2, rule="original"),
    "prompt-lookup-gated": lambda network: PromptLookup(min_hit_rate=0.4),
    "prompt-lookup-adaptive": lambda network: PromptLookup(length=adaptive),
    "jacobi": lambda network: Jacobi(),
    "jacobi-short": lambda network: Jacobi(2),
    "jacobi-long": lambda network: Jacobi(16),
    "lookahead": lambda network: Lookahead(),
    "lookahead-narrow": lambda network: Lookahead(W=1, N=3, G=1),
    "lookahead-text": lambda network: TextLookahead(7, 5, 7),
    "draft-model": lambda network: DraftModel(decoder_target(network_of(seed=1)), gamma=3),
    "draft-model-right": lambda network: DraftModel(network, gamma=3),  # ends stand inside what is accepted
    "medusa": lambda network: Medusa(heads_of(network), SIX),
    "medusa-everywhere": lambda network: Medusa(heads_of(network), EVERYWHERE),  # paths with gaps are accepted
    "early-exit": lambda network: EarlyExit(1, 3),
    "early-exit-right": lambda network: EarlyExit(2, 5),  # after the last layer: everything is accepted
    "early-exit-several": lambda network: FreshExits((1, 2), adaptive),
    "early-exit-adaptive": lambda network: EarlyExit(1, adaptive(), vocabulary=torch.tensor([1, 3, 4, 7, 9])),
}
proposers = pytest.mark.parametrize("make", PROPOSERS.values(), ids=PROPOSERS)
ANYWHERE = {name: make for name, make in PROPOSERS.items() if not name.startswith("early-exit")}  # on any target
anywhere = pytest.mark.parametrize("make", ANYWHERE.values(), ids=ANYWHERE)
on_targets = pytest.mark.parametrize("target, make", [
    pytest.param(*kind.values, make, id=f"{kind.id}-{name}")
    for kind in TARGETS for name, make in (PROPOSERS if kind.id == "decoder" else ANYWHERE).items()
])  # fmt: skip


@cache
def network_of(family: str = "llama", seed: int = 0):
    return tiny_of(family, seed=seed, vocab_size=V)


@cache
def greedy_text(family: str = "llama", **options) -> list[int]:
    """transformers' own greedy text."""
    prompt = torch.tensor([PROMPT])
    return network_of(family).generate(prompt, max_new_tokens=N, do_sample=False, **options)[0, len(PROMPT) :].tolist()


@anywhere
@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_text_is_that_of_transformers_for_any_family(family, make):
    network = network_of(family)
    assert generate(network, PROMPT, make(network), max_new_tokens=N).ids == greedy_text(family)


@pytest.mark.parametrize("name", [name for name in PROPOSERS if name.startswith(("prompt-lookup", "jacobi"))])
def test_chains_run_beyond_a_sliding_window(name):
    network = tiny_of("mistral", vocab_size=V, window=8)
    expected = network.generate(torch.tensor([PROMPT]), max_new_tokens=N, do_sample=False)[0].tolist()
    assert PROMPT + generate(network, PROMPT, PROPOSERS[name](network), max_new_tokens=N).ids == expected


@examples(60)
@given(
    name=st.sampled_from(sorted(PROPOSERS)),
    seed=st.integers(0, 5),
    prompt=st.lists(st.integers(0, V - 1), min_size=1, max_size=12),
    count=st.integers(1, 24),
    eos=st.lists(st.integers(0, V - 1), max_size=2),
)
def test_greedy_text_is_kept_for_random_models_prompts_and_end_tokens(name, seed, prompt, count, eos):
    network = network_of(seed=seed)
    target = decoder_target(network, eos=tuple(eos))
    plain = generate(target, prompt, max_new_tokens=count, on_tokens=bounded(count))
    out = generate(target, prompt, PROPOSERS[name](network), max_new_tokens=count, on_tokens=bounded(count))
    assert (out.ids, out.finish) == (plain.ids, plain.finish)
    assert len(out.stats) <= len(plain.stats)


@on_targets
@pytest.mark.parametrize("count", [1, 2, 3])
def test_small_budgets_are_kept(target, make, count):
    network = network_of()
    out = generate(target(network), PROMPT, make(network), max_new_tokens=count)
    assert out.ids == greedy_text()[:count]


def bounded(steps: int):
    """An on_tokens that fails after so many steps: a text that does not end must not run for ever."""
    left = list(range(steps))

    def count(tokens):
        assert left, f"the text goes on after {steps} steps"
        left.pop()

    return count


@on_targets
@pytest.mark.parametrize("at", range(8))
def test_nothing_follows_an_end_token_wherever_it_stands(target, make, at):
    network, eos = network_of(), greedy_text()[at]
    of = target(network)
    of.eos = (eos,)
    out = generate(of, PROMPT, make(network), max_new_tokens=N, on_tokens=bounded(N))
    assert out.ids == greedy_text()[: greedy_text().index(eos) + 1]
    assert out.finish == "eos"


@proposers
def test_an_end_token_held_back_by_the_minimum_length_does_not_disturb(make):
    network, eos = network_of(), greedy_text()[1]
    held = greedy_text(min_new_tokens=12, eos_token_id=eos, pad_token_id=0)
    out = generate(decoder_target(network, (eos,)), PROMPT, make(network), max_new_tokens=N, min_new_tokens=12)
    assert out.ids == held


@on_targets
def test_after_every_step_the_cache_is_that_of_the_committed_text(target, make):
    network = network_of()
    target = target(network)
    seq = new_sequence(target, PROMPT, make(network), Greedy(), 16)
    with exact(), torch.no_grad():
        while seq.finish_reason is None:
            step(target, [seq])
            assert_holds(seq.cache, seq.ids[:-1], target)


@targets
def test_sequences_with_different_proposers_decode_as_if_alone(target):
    """Prompts of unequal length, one fed in chunks, every proposer of the table, in common steps."""
    network = network_of()
    target = target(network)
    makes = list((ANYWHERE if isinstance(target, TransformersTarget) else PROPOSERS).values())
    prompts = [(PROMPT * 5)[: 3 + 2 * i] for i in range(len(makes))]
    seqs = [new_sequence(target, p, make(network), Greedy(), 12) for p, make in zip(prompts, makes, strict=True)]
    with torch.no_grad():
        while unfinished := [seq for seq in seqs if seq.finish_reason is None]:
            seqs[-1].num_scheduled_tokens = None if seqs[-1].output_ids else 4  # of the prompt alone
            step(target, unfinished)
    assert [seq.output_ids for seq in seqs] == [generate(target, p, max_new_tokens=12).ids for p in prompts]


CARRY = {"prompt-lookup-adaptive", "early-exit-adaptive"}  # estimates, to the next text


@pytest.mark.parametrize("name", sorted(PROPOSERS.keys() - CARRY))
def test_a_proposer_starts_every_text_afresh(name):
    network, make = network_of(), PROPOSERS[name]
    target, proposer = decoder_target(network), make(network)
    runs = [generate(target, p, proposer, max_new_tokens=N).stats for p in (PROMPT, [1, 2], PROMPT)]
    first, _, again = [[(s.num_input_tokens, s.committed) for s in stats] for stats in runs]
    assert again == first


@proposers
def test_draft_tokens_at_the_end_of_the_context_are_cut_to_what_fits(make):
    network = tiny(vocab_size=V, context=24)
    plain = generate(network, PROMPT, max_new_tokens=16).ids
    if make in ANYWHERE.values():
        assert generate(network, PROMPT, make(network), max_new_tokens=16).ids == plain
    assert generate(decoder_target(network), PROMPT, make(network), max_new_tokens=16).ids == plain


@proposers
def test_draft_tokens_that_a_static_cache_cannot_hold_are_left_out(make):
    network = network_of()
    assert generate(Tight(network, len(PROMPT) + N + 2), PROMPT, make(network), max_new_tokens=N).ids == greedy_text()


# ---- proposers that need no network: toy targets, where the truth is known token by token

NETWORKS = ("draft-model", "medusa", "early-exit")
TOKEN_ONLY = {name: make for name, make in PROPOSERS.items() if not name.startswith(NETWORKS)}
token_only = pytest.mark.parametrize("make", TOKEN_ONLY.values(), ids=TOKEN_ONLY)


@token_only
def test_a_text_that_repeats_gets_draft_tokens_accepted(make):
    """Otherwise the rest of this file would prove nothing about accepted draft tokens."""
    target = choosing(lambda prefix: len(prefix) % V, V)  # counts on, whatever the tokens before
    out = generate(target, [*range(V), 0, 1], make(None), max_new_tokens=60)
    assert out.ids == [(2 + i) % V for i in range(60)]
    assert sum(s.accepted for s in out.stats) >= 8 and tokens_per_pass(out.stats) > 1.15


@examples(120)
@given(name=st.sampled_from(sorted(TOKEN_ONLY)), seed=st.integers(0, 10**6), memory=st.integers(1, 4))
def test_greedy_text_is_kept_for_random_tables_of_next_tokens(name, seed, memory):
    target = whimsical(seed, 6, memory)
    out = generate(target, [seed % 6, 1, 2], TOKEN_ONLY[name](None), max_new_tokens=20)
    assert out.ids == continued(target, [seed % 6, 1, 2], 20)
    assert len(out.stats) <= 20


LOGITS = torch.randn(3, 3, 3, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
TOY = ToyTarget(lambda prefix: LOGITS[prefix[-2], prefix[-1]], 3)
TOY_PROMPT, TOY_TOKENS = [0, 1, 2, 0, 1, 2, 0, 1], 4
SAMPLED = {
    "prompt-lookup": lambda: PromptLookup(),
    "prompt-lookup-gated": lambda: PromptLookup(max_ngram=1, min_hit_rate=0.5),
    "prompt-lookup-adaptive": lambda: PromptLookup(max_ngram=1, length=adaptive),
    "prompt-lookup-original": lambda: PromptLookup(num_tokens=3, rule="original"),  # goes on after an end token
    "jacobi": lambda: Jacobi(3),
    "lookahead": lambda: TextLookahead(W=2, N=3, G=3),
}
sampled = pytest.mark.parametrize("make", SAMPLED.values(), ids=SAMPLED)
SAMPLED_BY_THEIR_OWN_TESTS = {DraftModel, Medusa, EarlyExit}  # in files of these names


def test_no_proposer_is_left_out_of_these_tables():
    everything = {of for of in vars(lessons_lib).values() if isinstance(of, type) and issubclass(of, Proposer)}
    made, drawn = [make(network_of()) for make in PROPOSERS.values()], [make() for make in SAMPLED.values()]
    assert {of for of in everything for one in made if isinstance(one, of)} == everything
    assert {of for of in everything for one in drawn if isinstance(one, of)} | SAMPLED_BY_THEIR_OWN_TESTS == everything


def distribution(make, rule) -> dict[tuple[int, ...], float]:
    """The exact probability of every text that generate can write."""
    return exact_distribution(lambda: tuple(generate(TOY, TOY_PROMPT, make(), rule, max_new_tokens=TOY_TOKENS).ids))


def target_distribution(rule) -> dict[tuple[int, ...], float]:
    """The same from the target's own distributions."""
    return distribution_of_texts(lambda ids: rule.probabilities(TOY.logits(tuple(ids))).tolist(), TOY_TOKENS)


@sampled
@pytest.mark.parametrize(
    "rule",
    [Sampling(), Sampling(temperature=0.6, top_k=2), Sampling(top_p=0.8)],
    ids=["plain", "top-2", "top-p"],
)
def test_sampled_texts_have_exactly_the_targets_distribution(make, rule):
    assert distribution(make, rule) == pytest.approx(target_distribution(rule), abs=1e-12)


def distribution_of_texts(next_distribution, count: int = 3, eos: tuple[int, ...] = ()) -> dict[tuple[int, ...], float]:
    """Texts of `count` tokens, fewer where one ends, each with its probability by the chain rule.

    next_distribution: ids -> the probability of each token after them.
    """
    ended, expected = {}, {(): 1.0}
    for _ in range(count):
        distributions = {text: next_distribution([*TOY_PROMPT, *text]) for text in expected}
        expected = {
            (*text, t): p * distributions[text][t]
            for text, p in expected.items()
            for t in range(3)
            if distributions[text][t] > 0
        }
        ended |= {text: p for text, p in expected.items() if text[-1] in eos}
        expected = {text: p for text, p in expected.items() if text not in ended}
    return ended | expected


def distribution_of_a_pass(network, rule) -> Callable[[list[int]], list[float]]:
    """What transformers' own pass gives for the next token."""

    @torch.no_grad()
    def next_distribution(ids):
        with exact():
            return rule.probabilities(network(torch.tensor([ids])).logits[0, -1:])[0].tolist()

    return next_distribution


@sampled
def test_a_wrong_rule_would_be_caught(make):
    with mock.patch.object(sampling, "choose_child", correction_from_p):
        found = distribution(make, Sampling())
    assert max(abs(found[text] - pr) for text, pr in target_distribution(Sampling()).items()) > 0.01


# ---- and all at once: any family, several sequences, ends inside drafts, small budgets

KINDS = [pytest.param(family, TransformersTarget, id=family) for family in FAMILIES]
KINDS += [pytest.param(family, decoder_target, id=f"{family}-decoder") for family in ("llama", "mistral")]
in_any_family = pytest.mark.parametrize("family, kind", KINDS)
BUDGETS = (1, 2, N)


def stopping(family: str, kind):
    """A target of this family whose greedy text ends with the token that it writes latest for the first time."""
    target, text = kind(network_of(family)), greedy_text(family)
    target.eos = (max(text, key=text.index),)
    return target


class Knows(Proposer):
    """Drafts the next four tokens of a known text."""

    def __init__(self, text):
        self.text = text

    def propose(self, ids, tree):
        tree.add_chain(self.text[len(ids) : len(ids) + 4])


def token_only_sequences(family: str, target, rule) -> list:
    """Every token-only proposer with every budget, and one that knows the text, and more tokens after its end."""
    known = [*PROMPT, *greedy_text(family), *PROMPT]
    knows = lambda network: Knows(known)  # noqa: E731
    made = [(make(None), count) for make in (*TOKEN_ONLY.values(), knows) for count in BUDGETS]
    dice = [torch.Generator().manual_seed(seed) for seed in range(len(made))]
    return [
        new_sequence(target, PROMPT, by, rule, count, generator=g) for (by, count), g in zip(made, dice, strict=True)
    ]  # fmt: skip


@torch.no_grad()
def finish(target, seqs: list) -> list:
    """The seqs, all in common steps until each has ended; no more steps than the longest may need."""
    for _ in range(1 + N):
        if unfinished := [seq for seq in seqs if seq.finish_reason is None]:
            step(target, unfinished)
    return seqs


@in_any_family
@pytest.mark.parametrize("rule", [Greedy(), Sampling(1e-6)], ids=["greedy", "cold"])
def test_sequences_of_any_family_write_the_greedy_text_up_to_its_end_or_their_budget(family, kind, rule):
    target, text = stopping(family, kind), greedy_text(family)
    text = text[: text.index(*target.eos) + 1]
    seqs = finish(target, token_only_sequences(family, target, rule))
    assert [seq.output_ids for seq in seqs] == [text[: seq.max_tokens] for seq in seqs]
    assert [seq.finish_reason for seq in seqs] == ["eos" if seq.output_ids == text else "length" for seq in seqs]
    assert any(seq.stats[-1].accepted == seq.stats[-1].committed for seq in seqs)  # the end was a draft token
    assert any(not step.proposed for seq in seqs for step in seq.stats[1:])  # and some drafts were empty


@sampled
@in_any_family
@pytest.mark.parametrize("budgets", [(1, 3), (2,)], ids=str)
def test_sampled_sequences_of_any_family_follow_their_distribution_with_ends_and_small_budgets(
    family, kind, make, budgets
):
    network, rule, eos = tiny_of(family, vocab_size=3), Sampling(temperature=0.5), (0,)
    target = kind(network)
    target.eos = eos

    def texts():
        seqs = finish(target, [new_sequence(target, TOY_PROMPT, make(), rule, count) for count in budgets])
        return tuple(tuple(seq.output_ids) for seq in seqs)

    distributions = [distribution_of_texts(distribution_of_a_pass(network, rule), count, eos) for count in budgets]
    expected = {
        of: prod(distribution[text] for distribution, text in zip(distributions, of, strict=True))
        for of in product(*distributions)
    }
    assert exact_distribution(texts) == pytest.approx(expected, abs=1e-5)
