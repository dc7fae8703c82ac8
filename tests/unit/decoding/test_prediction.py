"""Replaying a recorded text counts what the loop counts, and the ladder multiplies its gains."""

import math
import random
from dataclasses import replace
from operator import attrgetter

import pytest
from support.proposers import Scripted, no_draft, random_chain, tree_of, tree_with_decoys
from support.toys import choosing, continued, whimsical

from lessons_lib import DraftModel, PromptLookup, generate
from lessons_lib.decoding.generate import StepStats
from lessons_lib.decoding.prediction import (
    Configuration,
    Recording,
    best,
    best_exit,
    check_order,
    counting,
    counts,
    follow,
    replay,
    replay_draft,
    replayed_speed,
    step_gains,
    way_to,
)
from lessons_lib.decoding.proposers.draft_length import Adaptive, Constant
from lessons_lib.measure.cost import StepCost

PROMPT = [1, 2, 3, 1, 2, 4, 1, 2]
LOOKUPS = [
    dict(rule="transformers"), dict(rule="recent"), dict(rule="original", num_tokens=3), dict(num_tokens=1),
    dict(max_ngram=1, num_tokens=30), dict(min_hit_rate=0.6),
]  # fmt: skip
COUNTED = ("length_before", "num_input_tokens", "proposed", "depth", "accepted", "committed", "is_prefill")


def counted(stats):
    return list(map(attrgetter(*COUNTED), stats))


@pytest.mark.parametrize("settings", LOOKUPS, ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_a_replay_counts_what_the_loop_counted(settings, seed):
    target = whimsical(seed, 6, memory=2)  # soon repeats itself
    out = generate(target, PROMPT, PromptLookup(**settings), max_new_tokens=40)
    assert counted(replay(Recording(PROMPT, out.ids), PromptLookup(**settings))) == counted(out.stats)


@pytest.mark.parametrize("rule", ["transformers", "recent", "original"])
@pytest.mark.parametrize("seed", range(3))
def test_a_text_that_an_end_token_ended_is_counted_as_the_loop_counts_it(rule, seed):
    target = whimsical(seed, 6, memory=2)
    target.eos = (0,)
    out = generate(target, PROMPT, PromptLookup(4, rule=rule), max_new_tokens=60)
    recording = Recording(PROMPT, out.ids, eos=(0,), max_new_tokens=60)
    assert counted(replay(recording, PromptLookup(4, rule=rule))) == counted(out.stats)


@pytest.mark.parametrize("rule, step", [
    ("original", (7, 3, 2, 2, 2, 2, False)),  # copies the end token itself, after which nothing counts
    ("transformers", (7, 2, 1, 1, 1, 2, False)),  # stops before it, so that the target says it
])  # fmt: skip
def test_a_copied_end_token_by_hand(rule, step):
    recording = Recording([1, 2, 3, 0, 4, 1], [2, 3, 0], eos=(0,), max_new_tokens=10)
    assert counted(replay(recording, PromptLookup(2, rule=rule)))[1:] == [step]


@pytest.mark.parametrize("script", [random_chain, tree_with_decoys])
def test_trees_are_followed_as_greedy_acceptance_follows_them(script):
    target = whimsical(0, 6)
    new = continued(target, PROMPT, 20)
    proposers = [Scripted([*PROMPT, *new], 6, script) for _ in range(2)]
    out = generate(target, PROMPT, proposers[0], max_new_tokens=20)
    assert counted(replay(Recording(PROMPT, new), proposers[1])) == counted(out.stats)
    paths = [[(seen.path, seen.tokens) for seen in proposer.seen] for proposer in proposers]
    assert paths[0] == paths[1]


def test_a_path_ends_with_the_first_token_that_nobody_drafted():
    tree = tree_of([5, 6, 7], [-1, 0, -1])
    assert [follow(tree, text) for text in ([5, 6, 8], [7, 6], [6], [])] == [[0, 1], [2], [], []]


def test_the_speed_by_hand():
    target = choosing(lambda prefix: len(prefix) % 2, 2)
    stats = generate(target, [0, 1, 0, 1], PromptLookup(2), max_new_tokens=6).stats
    assert [step.num_input_tokens for step in stats] == [4, 3, 2] and [step.committed for step in stats] == [1, 3, 2]
    assert StepCost(v={1: 1.0, 2: 1.5, 3: 2.0}).speed(stats) == pytest.approx(5 / 3.5)
    assert StepCost().speed(stats) == 2.5 and math.isnan(StepCost().speed(stats[:1]))


@pytest.mark.parametrize("prompt, new", [([], [1]), ([1], [])])
def test_a_recording_without_prompt_or_text_is_refused(prompt, new):
    with pytest.raises(ValueError, match="at least one token each"):
        Recording(prompt, new)


def often_right(target, seed: int, share: float):
    """A draft that says what the target says for a share of all prefixes, and something else for the others."""

    def choice(prefix):
        token = int(target.logits(prefix).argmax())
        return token if random.Random(f"{seed} {prefix}").random() < share else (token + 1) % target.vocab_size

    return choosing(choice, target.vocab_size)


SCHEDULES = [
    pytest.param(lambda: Constant(3), id="constant"),
    pytest.param(lambda: Adaptive(0.2, {1: 1.0, 9: 2.0}, most=8), id="adaptive"),
    pytest.param(lambda: Adaptive(0.9, {1: 1.0, 9: 3.0}, most=8), id="adaptive that stops"),
]


@pytest.mark.parametrize("make", SCHEDULES)
@pytest.mark.parametrize("share", [0.0, 0.6, 1.0])
def test_a_replayed_draft_takes_the_steps_that_the_loop_takes(make, share):
    """Two texts one after the other, so that what a schedule carries over counts, too."""
    target, schedule = whimsical(1, 6), make()
    draft = often_right(target, 0, share)
    proposer = DraftModel(draft, make())
    for prompt in ([1, 2, 3], [4, 4]):
        out = generate(target, prompt, proposer, max_new_tokens=50)
        prefixes = [tuple([*prompt, *out.ids[:at]]) for at in range(1, len(out.ids))]
        right = [int(draft.logits(p).argmax()) == t for p, t in zip(prefixes, out.ids[1:], strict=True)]
        steps = replay_draft(right, schedule)
        seen = attrgetter("num_input_tokens", "proposed", "depth", "accepted", "committed", "draft_calls")
        assert list(map(seen, steps)) == list(map(seen, out.stats[1:]))


def test_a_replayed_draft_by_hand_and_what_it_costs():
    right = [True, True, False, True, True, True, False]
    steps = replay_draft(right, Constant(2))
    assert [(step.depth, step.accepted, step.committed) for step in steps] == [(2, 2, 3), (2, 2, 3), (0, 0, 1)]
    assert [step.length_before for step in steps] == [0, 3, 6]
    v = {1: 1.0, 3: 1.5}
    assert StepCost(v=v, draft=0.1).steps(steps) == pytest.approx(2 * (1.5 + 0.2) + 1.0)
    assert StepCost(v=v, draft=0.1).speed(steps) == pytest.approx(7 / 4.4) and StepCost().steps(steps) == 3
    assert replay_draft([], Constant(2)) == []


@pytest.mark.parametrize("last, accepted", [(True, 1), (False, 0)])
def test_an_end_token_may_be_drafted_and_then_the_step_adds_no_token_of_its_own(last, accepted):
    right = [True, True, False, True, True, True, last]
    steps = replay_draft(right, Constant(2), eos=True)
    drafted = [(step.proposed, step.accepted, step.committed) for step in steps]
    assert drafted == [(2, 2, 3), (2, 2, 3), (1, accepted, 1)]
    assert [step.committed for step in replay_draft([True] * 4, Constant(4), eos=True)] == [4]


@pytest.mark.parametrize("share", [0.6, 1.0])
def test_the_loop_takes_the_replayed_steps_to_an_end_token(share):
    target, prompt = whimsical(1, 6), [1, 2, 3]
    text = generate(target, prompt, max_new_tokens=50).ids
    end = max(range(6), key=lambda token: text.index(token) if token in text else -1)  # first seen latest
    target.eos = (end,)
    out = generate(target, prompt, DraftModel(draft := often_right(target, 0, share), Constant(3)), max_new_tokens=50)
    assert out.ids[-1] == end and len(out.ids) < 50
    prefixes = [tuple([*prompt, *out.ids[:at]]) for at in range(1, len(out.ids))]
    right = [int(draft.logits(p).argmax()) == t for p, t in zip(prefixes, out.ids[1:], strict=True)]
    seen = attrgetter("accepted", "committed")
    assert list(map(seen, replay_draft(right, Constant(3), eos=True))) == list(map(seen, out.stats[1:]))


def test_a_draft_that_is_cut_at_the_end_of_the_text_costs_less_than_a_full_one():
    cost = StepCost(v={1: 1.0, 3: 1.2, 5: 1.4}, draft=0.25)
    full, cut = 4 * 0.25 + 1.4, 2 * 0.25 + 1.2  # steps of 4 draft tokens, and of the 2 that are left
    fits, ends = [True] * 10, [True] * 8  # two steps each: 5 + 5 tokens, 5 + 3 tokens
    assert replayed_speed([fits], 4, cost) == pytest.approx(10 / (full + full))
    assert replayed_speed([ends], 4, cost) == pytest.approx(8 / (full + cut))
    assert replayed_speed([fits, ends], 4, cost) == pytest.approx(18 / (3 * full + cut))


def test_counts_are_what_a_replay_knows_of_a_step():
    assert counts([StepStats(5, 3, proposed=2, accepted=1, committed=2, t_total=9.0)]) == [(3, 1, 2)]


def test_a_proposer_gets_the_prompt_and_nothing_of_the_text():
    given, proposer = [], Scripted([*PROMPT, 5, 6], 8, no_draft)
    proposer.reset = lambda target, prompt: given.append(prompt)
    replay(Recording(PROMPT, [5, 6]), proposer)
    assert given == [PROMPT]


PLAIN = StepCost(weight_bytes=800, kv_bytes=2, bandwidth=100)
PREFILL = StepStats(length_before=10, num_input_tokens=10, committed=1, is_prefill=True)
DRAFTED = [PREFILL, StepStats(11, 3, 2, committed=3, draft_calls=2), StepStats(14, 1, committed=1)]


def configs() -> list[Configuration]:
    slow = Configuration("slow", None, PLAIN)
    halved = Configuration("halved", "slow", replace(PLAIN, weight_bytes=400))
    return [slow, halved, Configuration("fast", "halved", PLAIN), Configuration("aside", "slow", PLAIN)]


def test_decoding_leaves_out_the_prefill_and_adds_what_happens_around():
    assert PLAIN.decoding([PREFILL]) == 0
    assert PLAIN.decoding(DRAFTED) == pytest.approx(8.22 + 8.28)
    expensive = replace(PLAIN, v={1: 1.0, 3: 2.0}, host=0.5, draft=0.25)
    assert expensive.decoding(DRAFTED) == pytest.approx(2 * 8.22 + 8.28 + 2 * 0.5 + 2 * 0.25)


def test_gains_along_a_way_multiply_to_the_whole():
    speeds = {"slow": 10.0, "halved": 25.0, "fast": 20.0, "aside": 5.0}
    gains = step_gains(configs(), speeds)
    assert gains == {"slow": 1, "halved": 2.5, "fast": 0.8, "aside": 0.5}
    way = way_to(configs(), "fast")
    assert [config.name for config in way] == ["slow", "halved", "fast"]
    assert gains["slow"] * gains["halved"] * gains["fast"] == pytest.approx(speeds["fast"] / speeds["slow"])


def test_what_was_not_measured_has_no_gain_and_gives_none():
    assert step_gains(configs(), {"slow": 10.0, "fast": 20.0, "aside": 5.0}) == {"slow": 1, "aside": 0.5}


def test_a_configuration_counts_up_to_one_percent_of_perplexity_and_better_ones_do():
    found = {"same": 20.0, "near": 20.2, "far": 20.21, "better": 19.0}
    assert counting(found, 20.0) == {"same", "near", "better"}


def test_the_best_configuration_is_the_fastest_that_counts():
    assert best({"a": 3.0, "b": 5.0, "c": 4.0}, {"a", "c", "not measured"}) == "c"
    with pytest.raises(ValueError, match="measure one of: d, e"):
        best({"a": 3.0}, {"e", "d"})


def test_a_configuration_stands_on_an_earlier_one_and_has_a_name_of_its_own():
    check_order(configs())
    with pytest.raises(ValueError, match="'fast' stands on 'halved'"):
        check_order([configs()[0], *configs()[2:]])
    with pytest.raises(ValueError, match="two configurations are called 'slow'"):
        check_order([*configs(), configs()[0]])
    with pytest.raises(ValueError, match="no configuration 'middle'; choose one of: slow, halved, fast, aside"):
        way_to(configs(), "middle")


def test_the_best_exit_weighs_what_it_guesses_against_what_it_costs():
    """24 tokens each. Exit 1 is always wrong, exit 2 is right two times of three, exit 3 always."""
    right = {1: [[False] * 24], 2: [[True, True, False] * 8], 3: [[True] * 24]}

    def chosen(*c, v=None, most=8):
        return best_exit(right, {layer: StepCost(v=v, draft=cost) for layer, cost in enumerate(c, 1)}, most)

    assert chosen(0.1, 0.2, 0.9) == (2, 2)  # 3 tokens for 1.4 passes
    assert chosen(0.1, 0.2, 0.2, most=5) == (3, 5)  # 6 tokens for 2 passes
    assert chosen(0.1, 0.2, 0.2, v={1: 1.0, 2: 1.0, 3: 9.0}, most=5) == (3, 1)  # only pairs are cheap
