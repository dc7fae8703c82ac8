"""EarlyExit: the target's own text, the layers that run, one cache for draft and verification, and bad settings."""

import math

import pytest
import torch
from support.oracle import PROMPT, N
from support.proposers import Forgetful, drafted
from support.targets import decoder_target
from torch import nn

from lessons_lib import EarlyExit, Greedy, Sampling, generate
from lessons_lib.caches.cache import ContiguousCache
from lessons_lib.caches.streaming import Streaming
from lessons_lib.decoding.draft_tree import DraftTree, plain_input
from lessons_lib.decoding.generate import new_sequence, step
from lessons_lib.decoding.proposers.draft_length import Adaptive, Confidence, DraftLength
from lessons_lib.decoding.targets import CompiledTarget, DecoderTarget, StreamingTarget, TransformersTarget, Unsupported
from lessons_lib.models import tiny
from lessons_lib.models.exits import ExitAdapter
from lessons_lib.quantization import quantize_model

LAYERS = 4
EXITS, LENGTHS = range(1, LAYERS + 1), range(9)
SHORT = torch.tensor([*range(0, 97, 3)])  # a short draft vocabulary


@pytest.fixture(scope="module")
def target() -> DecoderTarget:
    return decoder_target(tiny(LAYERS))


@pytest.fixture(scope="module")
def plain(target) -> list[int]:
    return generate(target, PROMPT, max_new_tokens=N).ids


class Always(DraftLength):
    """The same number of tokens at every step; other than Constant, it may be 0."""

    def __init__(self, gamma: int):
        self.gamma = gamma

    def next(self) -> int:
        return self.gamma


def rejected(stats) -> int:
    return sum(s.accepted < s.proposed for s in stats)


# the same tokens as plain greedy decoding


@pytest.mark.parametrize("exit_layer", EXITS)
def test_greedy_text_is_kept_for_every_exit_and_draft_length(target, plain, exit_layer):
    for gamma in LENGTHS:
        out = generate(target, PROMPT, EarlyExit(exit_layer, Always(gamma)), max_new_tokens=N)
        assert out.ids == plain
        assert all(s.depth <= gamma for s in out.stats)
        if gamma and exit_layer < LAYERS:
            assert sum(s.accepted for s in out.stats) and rejected(out.stats)  # both outcomes took place


class Shifting(nn.Module):
    """An exit adapter that changes some drafts, but not all."""

    def forward(self, states):
        return states + 0.5 * states.roll(1, -1)


SETTINGS = [
    pytest.param(lambda: dict(), id="argmax"),
    pytest.param(lambda: dict(sampling=Sampling(0.7), generator=torch.Generator().manual_seed(0)), id="sampled"),
    pytest.param(lambda: dict(vocabulary=SHORT), id="short vocabulary"),
    pytest.param(lambda: dict(adapter=Shifting()), id="adapter"),
    pytest.param(lambda: dict(draft_tokens=Confidence(6, 0.3)), id="stops after doubt"),
    pytest.param(lambda: dict(draft_tokens=Adaptive(0.2, most=4)), id="adaptive"),
]
settings = pytest.mark.parametrize("made", SETTINGS)


@settings
def test_greedy_text_is_kept_whatever_is_drafted(target, plain, made):
    stats = []
    for exit_layer in (2, 3):
        out = generate(target, PROMPT, EarlyExit(exit_layer, **made()), max_new_tokens=N)
        assert out.ids == plain
        stats += out.stats
    assert sum(s.accepted for s in stats) and rejected(stats)  # both outcomes took place


def test_after_the_last_layer_everything_is_accepted(target, plain):
    for gamma in (1, 2, 4, 8):
        out = generate(target, PROMPT, EarlyExit(LAYERS, gamma), max_new_tokens=N)
        assert len(out.stats) == 1 + math.ceil((N - 1) / (gamma + 1)) and out.ids == plain
        assert all(s.accepted == s.proposed for s in out.stats)


def test_nothing_is_drafted_after_an_end_token(plain):
    target = decoder_target(tiny(LAYERS), eos=(plain[3],))
    out = generate(target, PROMPT, EarlyExit(LAYERS, 8), max_new_tokens=N)
    assert plain.index(plain[3]) == 3 and out.ids == plain[:4]
    assert [s.proposed for s in out.stats] == [s.draft_calls for s in out.stats] == [0, 3]


# the layers that run, and over how many tokens


def rows_of_layers(target, monkeypatch) -> list[list[int]]:
    """For each layer the numbers of tokens in its calls, filled as the target runs."""
    rows = [[] for _ in target.decoder.layers]
    for layer, seen in zip(target.decoder.layers, rows, strict=True):
        run = layer.forward
        monkeypatch.setattr(layer, "forward", lambda x, *a, run=run, seen=seen: seen.append(len(x)) or run(x, *a))
    return rows


@pytest.mark.parametrize("exit_layer, gamma", [(1, 1), (1, 4), (3, 4), (4, 2)])
def test_verification_runs_only_the_later_layers_over_the_root_and_the_draft(target, monkeypatch, exit_layer, gamma):
    seq = new_sequence(target, PROMPT, EarlyExit(exit_layer, gamma), Greedy(), N)
    rows = rows_of_layers(target, monkeypatch)
    with torch.no_grad():
        step(target, [seq])  # the prompt
        for seen in rows:
            assert seen == [len(PROMPT)]
            seen.clear()
        step(target, [seq])
    late = LAYERS - exit_layer
    assert rows == [[1] * (gamma + 1)] * exit_layer + [[gamma + 1]] * late


class Watched(EarlyExit):
    """Notes the committed text, the draft and the logits of every step."""

    def propose(self, ids, tree):
        self.steps = getattr(self, "steps", [])
        self.before = list(ids)
        super().propose(ids, tree)

    def observe(self, tree, path, tokens, output):
        super().observe(tree, path, tokens, output)
        if tree.tokens:
            self.steps.append((self.before, tree.tokens, output.logits, len(path)))


@pytest.mark.parametrize("exit_layer", EXITS)
@pytest.mark.parametrize("gamma", [1, 4])
def test_logits_of_the_later_layers_are_those_of_one_pass_over_the_text(target, exit_layer, gamma):
    proposer = Watched(exit_layer, gamma)
    generate(target, PROMPT, proposer, max_new_tokens=N)
    assert exit_layer == LAYERS or any(accepted < len(draft) for _, draft, _, accepted in proposer.steps[:-1])
    for ids, draft, logits, _ in proposer.steps:
        expected = target.decoder.read([*ids, *draft])[len(ids) - 1 :]
        torch.testing.assert_close(logits, expected, rtol=0, atol=1e-10)


def test_sequences_with_different_exits_beside_prompts_and_plain_ones_decode_as_if_alone(target):
    made = [EarlyExit(3, 2), None, EarlyExit(1, 4), EarlyExit(3, 5), EarlyExit(LAYERS, 1)]
    prompts = [PROMPT[: 1 + i] for i in range(len(made))]
    seqs = [new_sequence(target, ids, by, Greedy(), 12) for ids, by in zip(prompts, made, strict=True)]
    with torch.no_grad():
        for number in range(30):  # a sequence more at every step: prompts run beside drafts
            if running := [seq for seq in seqs[: number + 1] if seq.finish_reason is None]:
                step(target, running)
    assert [seq.output_ids for seq in seqs] == [generate(target, ids, max_new_tokens=12).ids for ids in prompts]


# mistakes that the tests above would notice


class NormedStates(EarlyExit):
    """Wrong on purpose: hands over the exit states after the final norm."""

    def propose(self, ids, tree):
        super().propose(ids, tree)
        if tree.tokens:
            tree.states = self.decoder.final(tree.states)


class ForgetsTheLast(EarlyExit):
    """Wrong on purpose: the last draft token skips the early layers and borrows its neighbour's state."""

    def propose(self, ids, tree):
        super().propose(ids, tree)
        if tree.tokens:
            tree.states[-1] = tree.states[-2]
            for layer in range(self.exit_layer):
                tree.cache._lengths[layer] -= 1


class EarlyLayersOnly(ContiguousCache):
    """Wrong on purpose: drops rejected tokens from the first layers only."""

    def keep(self, prefix, then=()):
        late = self._lengths[2:]
        super().keep(prefix, then)
        self._lengths[2:] = late


class LeavesTheRest(EarlyExit):
    def reset(self, target, prompt):
        super().reset(target, prompt)
        c = target.decoder.config
        target.new_cache = lambda tokens: EarlyLayersOnly(c.num_layers, c.num_kv_heads, c.head_dim, target.dtype)


@pytest.mark.parametrize("wrong", [NormedStates, ForgetsTheLast, LeavesTheRest])
def test_wrong_exit_states_and_caches_change_the_text(wrong, plain):
    try:
        ids = generate(decoder_target(tiny(LAYERS)), PROMPT, wrong(2, 1), max_new_tokens=N).ids
    except RuntimeError:  # entries of rejected tokens count as committed, so no token is left to run
        ids = None
    assert ids != plain


# several exits


class Exits(EarlyExit):
    """Keeps the exit layer of every step that drafts."""

    def reset(self, target, prompt):
        super().reset(target, prompt)
        self.taken = []

    def propose(self, ids, tree):
        super().propose(ids, tree)
        assert tree.first_layer == (self.exit_layer if tree.tokens else 0)
        self.taken += [self.exit_layer] if tree.tokens else []


def test_steps_draft_from_different_exits_and_one_that_was_wrong_is_tried_again_later(target):
    """The first exit is rarely right, and so cheap that it is worth another try once its bad record has aged."""
    proposer = Exits({1: Forgetful(0.01, most=2), LAYERS: Forgetful(0.3, most=2)})
    out = generate(target, PROMPT, proposer, max_new_tokens=90)
    assert out.ids == generate(target, PROMPT, max_new_tokens=90).ids
    first, *later = [i for i, layer in enumerate(proposer.taken) if layer == 1]
    assert any(LAYERS in proposer.taken[first:i] for i in later)


@pytest.mark.parametrize("cost, best", [(0.1, LAYERS), (0.95, 1)])
def test_the_exit_with_the_highest_predicted_speed_drafts(cost, best):
    """The last exit is always right. If it is cheap it is used, if it costs a whole pass the first one is."""
    target = decoder_target(tiny(LAYERS))
    proposer = Exits({1: Adaptive(0.02, most=4), LAYERS: Adaptive(cost, most=4)})
    generate(target, PROMPT, proposer, max_new_tokens=60)
    assert proposer.taken[-1] == best


def test_only_the_schedule_of_the_exit_that_drafted_learns(target):
    schedules = {1: Adaptive(0.9, most=2), LAYERS: Adaptive(0.01, most=2)}
    generate(target, PROMPT, EarlyExit(schedules), max_new_tokens=N)
    assert schedules[1].alpha == pytest.approx(0.7) and schedules[LAYERS].alpha > 0.75


# what is drafted


def fed(target) -> DraftTree:
    """An empty tree over a cache that holds all of PROMPT but the root."""
    target.run([plain_input(PROMPT[:-1], cache := target.new_cache(8))])
    return DraftTree(cache=cache)


@torch.no_grad()
def test_q_is_the_distribution_of_the_exit_and_lives_on_the_short_vocabulary(target):
    rule = Sampling(1.5, top_k=20)
    proposer = EarlyExit(2, 3, SHORT, rule, torch.Generator().manual_seed(1))
    proposer.reset(target, PROMPT)
    tree = drafted(proposer, PROMPT, cache=fed(target).cache)
    assert len(tree.tokens) == tree.draft_calls == 3
    for node, token in enumerate(tree.tokens):
        children = tree.children[node - 1]
        scores = torch.full((97,), -torch.inf, dtype=torch.float64)
        scores[SHORT] = target.decoder.logits(tree.states[node])[SHORT]
        torch.testing.assert_close(children.q, rule.probabilities(scores), rtol=0, atol=1e-12)
        assert children.mode == "iid" and children.q[token] > 0 and token in SHORT
        assert children.q.count_nonzero() == 20 and children.q.sum() == pytest.approx(1)


class Answering(nn.Module):
    """An adapter that replaces every state by one and the same."""

    def __init__(self, state):
        super().__init__()
        self.state = state

    def forward(self, states):
        return self.state.expand_as(states)


def test_the_head_reads_what_the_adapter_makes_of_the_exit_state(target, plain):
    state = torch.randn(32, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    proposer = Watched(2, 3, adapter=Answering(state))
    assert generate(target, PROMPT, proposer, max_new_tokens=N).ids == plain
    token = int(target.decoder.logits(state).argmax())
    assert {token for _, draft, _, _ in proposer.steps for token in draft} == {token}


# bad settings


@pytest.mark.parametrize("kind", [
    TransformersTarget,
    lambda network: CompiledTarget(decoder_target(network).decoder),
    lambda network: StreamingTarget(decoder_target(network).decoder, streaming=Streaming(window=60, chunk=8)),
], ids=["transformers", "compiled", "streaming"])  # fmt: skip
def test_targets_that_run_all_layers_at_once_are_refused(kind):
    with pytest.raises(Unsupported, match="EarlyExit needs layer ranges, which .*; use model.target.kind=.decoder"):
        generate(kind(tiny()), PROMPT, EarlyExit(1))


@pytest.mark.parametrize("make, error, said", [
    (lambda: EarlyExit(0), ValueError, "exit_layer must be at least 1, not 0"),
    (lambda: EarlyExit(1.5), TypeError, "exit_layer must be an integer"),
    (lambda: EarlyExit(2, adapter=ExitAdapter(32, 3)), ValueError, "for the exit after 3 layers, not 2"),
    (lambda: EarlyExit(2, 0), ValueError, "draft_tokens must be at least 1, not 0"),
    (lambda: EarlyExit(5), ValueError, "exit_layer 5 is beyond the target's 4 layers"),
    (lambda: EarlyExit(2, vocabulary=torch.tensor([3, 97])), ValueError, "ids from 0 to 96"),
    (lambda: EarlyExit(2, vocabulary=torch.tensor([])), ValueError, "ids from 0 to 96"),
    (lambda: EarlyExit({}), TypeError, "several exits need an Adaptive schedule each"),
    (lambda: EarlyExit({1: 4, 2: 4}), TypeError, "several exits need an Adaptive schedule each"),
    (lambda: EarlyExit({1: Adaptive(0.1), 5: Adaptive(0.1)}), ValueError, "exit_layer 5 is beyond"),
])  # fmt: skip
def test_impossible_settings_are_refused(target, make, error, said):
    with pytest.raises(error, match=said):
        generate(target, PROMPT, make(), max_new_tokens=2)


def test_a_short_vocabulary_of_a_quantized_head_is_refused(target):
    rounded = DecoderTarget(quantize_model(target.decoder, "int8"))
    assert not isinstance(rounded.decoder.head, nn.Linear)
    with pytest.raises(ValueError, match="LM head that is not quantized; leave `vocabulary` out"):
        generate(rounded, PROMPT, EarlyExit(2, vocabulary=SHORT))
