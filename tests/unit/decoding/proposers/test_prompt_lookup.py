"""Prompt lookup: three rules against cases by hand and naive scans, an index that only grows, gating."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples
from support.proposers import drafted
from support.toys import choosing, whimsical

from lessons_lib import PromptLookup, generate
from lessons_lib.decoding.generate import tokens_per_pass
from lessons_lib.decoding.proposers.draft_length import Constant, DraftLength


def draft(ids, eos=(), **options) -> list[int]:
    proposer = PromptLookup(**options)
    proposer.reset(choosing(len, 100, eos), ids)
    return drafted(proposer, ids).tokens


@pytest.mark.parametrize("ids, max_ngram, num_tokens, transformers, original, recent", [
    ([5, 6, 7, 8, 5, 6], 2, 3, [7, 8, 5], [7, 8, 5], [7, 8, 5]),
    ([5, 6, 7, 8, 5, 6], 2, 10, [7, 8, 5, 6], [], [7, 8, 5, 6, 7, 8, 5, 6, 7, 8]),
    ([1, 1, 1, 1], 2, 10, [1, 1], [], [1] * 10),
    ([3, 9, 4, 3, 9, 5, 3, 9], 2, 3, [4, 3, 9], [4, 3, 9], [5, 3, 9]),
    ([4, 8, 4], 3, 2, [8, 4], [8, 4], [8, 4]),
    ([8, 4], 3, 2, [], [], []),
    ([8], 3, 2, [], [], []),
    ([1, 2, 3, 9, 2, 3, 8, 1, 2, 3], 3, 2, [9, 2], [9, 2], [9, 2]),
    ([7, 2, 3, 8, 1, 2, 3, 9, 1, 2, 3], 3, 2, [9, 1], [9, 1], [9, 1]),  # longest first, not first match first
])  # fmt: skip
def test_cases_by_hand(ids, max_ngram, num_tokens, transformers, original, recent):
    sizes = dict(max_ngram=max_ngram, num_tokens=num_tokens)
    assert draft(ids, rule="transformers", **sizes) == transformers
    assert draft(ids, rule="original", **sizes) == original
    assert draft(ids, rule="recent", **sizes) == recent


@pytest.mark.parametrize("rule, found", [("transformers", [4]), ("recent", [4]), ("original", [4, 2])])
def test_the_draft_stops_before_an_end_token_except_by_the_original_rule(rule, found):
    assert draft([7, 4, 2, 5, 7], eos=(2,), rule=rule, num_tokens=2) == found
    assert draft([7, 2, 7], eos=(2,), rule=rule, num_tokens=1) == ([2] if rule == "original" else [])
    assert draft([7, 4, 2, 5, 2, 7], eos=(2,), rule=rule, num_tokens=4)[:2] == found


def naive(ids, rule, max_ngram, k) -> list[int]:
    """Every rule as a scan over the whole text, n by n, occurrence by occurrence."""
    for n in range(min(max_ngram, len(ids) - 1), 0, -1):
        starts = [i + n for i in range(len(ids) - n) if ids[i : i + n] == ids[-n:]]
        if rule == "original":
            starts = [s for s in starts if s + k <= len(ids) and s < len(ids) - n]
        if starts:
            start = starts[-1] if rule == "recent" else starts[0]
            text = ids + [None] * k
            for i in range(len(ids), len(text) if rule == "recent" else 0):
                text[i] = text[i - (len(ids) - start)]  # a copy that overlaps itself, token by token
            return [token for token in text[start : start + k] if token is not None]
    return []


@examples(200)
@given(
    ids=st.integers(2, 5).flatmap(lambda v: st.lists(st.integers(0, v), min_size=1, max_size=40)),
    rule=st.sampled_from(["recent", "transformers", "original"]),
    max_ngram=st.integers(1, 4),
    k=st.integers(1, 6),
    cuts=st.lists(st.integers(1, 40)),
)
def test_the_index_grown_in_any_steps_finds_what_a_scan_of_the_whole_text_finds(ids, rule, max_ngram, k, cuts):
    proposer = PromptLookup(k, max_ngram, rule)
    proposer.reset(choosing(len, 100), ids)
    for end in sorted({cut for cut in cuts if cut <= len(ids)} | {len(ids)}):
        assert drafted(proposer, ids[:end]).tokens == naive(ids[:end], rule, max_ngram, k)


class Watched(list):
    """A text that counts how many of its tokens are read."""

    read = 0

    def __getitem__(self, at):
        found = super().__getitem__(at)
        self.read += len(found) if isinstance(at, slice) else 1
        return found


@pytest.mark.parametrize("rule", ["recent", "transformers", "original"])
def test_a_step_reads_no_more_of_a_long_text_than_of_a_short_one(rule):
    reads = []
    for length in (20, 4000):
        ids, proposer = Watched(i * i % 17 for i in range(length)), PromptLookup(rule=rule)
        proposer.reset(choosing(len, 100), ids)
        drafted(proposer, ids)
        ids.extend([1, 2])
        ids.read, indexed = 0, len(proposer.text.after)
        proposer.text.tokens = Watched(proposer.text.tokens)
        drafted(proposer, ids)
        reads.append(ids.read + proposer.text.tokens.read)
        assert len(proposer.text.after) - indexed <= 2 * proposer.max_ngram
    assert reads[1] <= reads[0] + proposer.num_tokens


def proposed(proposer, ids, following) -> bool:
    """One step that commits a single token -> whether a draft was proposed."""
    tree = drafted(proposer, ids)
    proposer.observe(tree, [], [following], None)
    ids.append(following)
    return bool(tree.tokens)


def test_gating_follows_the_running_mean_of_right_first_tokens():
    """.5, .38, .28, .21, .16 after misses; a gated hit brings .12 to .34, and the next draft is proposed again."""
    proposer, ids = PromptLookup(max_ngram=1, min_hit_rate=0.2), [0]
    proposer.reset(choosing(len, 100), ids)
    misses = [proposed(proposer, ids, token) for token in (0, 1, 0, 2, 0, 3, 0, 4, 0)]
    assert misses == [False, True, False, True, False, True, False, True, False]  # 1, 2, 3, 4 were never seen before
    assert proposer.hit_rate[1] == pytest.approx(0.5 * 0.75**4)
    assert not proposed(proposer, ids, 4)  # 0 was followed by 4: right, but gated
    assert proposer.hit_rate[1] == pytest.approx(0.5 * 0.75**5 + 0.25)
    assert proposed(proposer, ids, 7)


def test_a_draft_is_judged_once_and_not_by_another_text():
    proposer, ids = PromptLookup(max_ngram=1), [0, 5, 0]
    proposer.reset(choosing(len, 100), ids)
    seen = drafted(proposer, ids), [], [9], None
    proposer.observe(*seen)
    proposer.observe(*seen)
    assert proposer.hit_rate[1] == pytest.approx(0.5 * 0.75)
    drafted(proposer, ids)
    proposer.reset(choosing(len, 100), ids)
    proposer.observe(*seen)
    assert proposer.hit_rate[1] == 0.5
    drafted(proposer, ids := [0, 5, 6, 0])
    proposer.observe(seen[0], [], [5, 6, 0, 9], None)  # three right tokens are one hit
    assert proposer.hit_rate[1] == pytest.approx(0.5 * 0.75 + 0.25)


def test_each_match_length_is_judged_by_itself():
    proposer, ids = PromptLookup(max_ngram=2, min_hit_rate=0.5), [1, 2, 5, 9, 2]
    proposer.reset(choosing(len, 100), ids)
    assert proposed(proposer, ids, 7) and proposer.hit_rate == [0.5, 0.375, 0.5]  # a match of one token missed
    ids += [1, 2]
    assert proposed(proposer, ids, 5)  # one of two tokens is still believed
    ids += [2]
    assert not proposed(proposer, ids, 3)


def test_random_text_costs_hardly_more_than_plain_decoding_and_a_repeating_one_gains_all_the_same():
    options = dict(num_tokens=6, min_hit_rate=0.5)
    free = [
        generate(whimsical(1, 30), [1, 2, 3], PromptLookup(**o), max_new_tokens=300).stats
        for o in (options, {"min_hit_rate": 0.0})
    ]
    fed, careless = [sum(s.num_input_tokens for s in stats) for stats in free]
    assert fed < 1.2 * 302 and careless > 3 * 302
    repeating = choosing(lambda prefix: (prefix[-1] + 1) % 20, 20)
    assert tokens_per_pass(generate(repeating, [0], PromptLookup(**options), max_new_tokens=200).stats) > 4


@pytest.mark.parametrize("rule, gates", [("recent", True), ("transformers", False), ("original", False)])
def test_only_the_rule_of_our_own_gates_unless_asked_otherwise(rule, gates):
    for options, expected in (({}, gates), ({"min_hit_rate": 0.0}, False), ({"min_hit_rate": 0.35}, True)):
        proposer, ids = PromptLookup(num_tokens=1, max_ngram=1, rule=rule, **options), [0, 8]
        proposer.reset(choosing(len, 100), ids)
        for token in (0, 2, 0, 3, 0, 4):  # each 0 is followed by what it was not followed by before
            proposed(proposer, ids, token)
        assert proposed(proposer, ids, 0) is False  # 4 was never seen
        assert proposed(proposer, ids, 5) is not expected


class Listening(DraftLength):
    """A schedule that says the same at every step and keeps what it observes."""

    def __init__(self, gamma: int):
        self.gamma, self.heard, self.resets = gamma, [], 0

    def reset(self):
        self.resets += 1

    def next(self):
        return self.gamma

    def observe(self, *seen):
        self.heard.append(seen)


def step_of(proposer, ids: list[int], new: list[int]) -> list[int]:
    """One step that commits these tokens -> the draft tokens that were proposed."""
    tree = drafted(proposer, ids)
    proposer.observe(tree, [], new, None)
    ids += new
    return tree.tokens


@pytest.mark.parametrize("gamma", [0, 2])
def test_a_schedule_says_how_much_of_a_copy_is_proposed_and_hears_how_much_was_and_all_that_could_be_judged(gamma):
    made = []
    proposer = PromptLookup(4, 2, length=lambda: made.append(Listening(gamma)) or made[-1])
    ids = [1, 2, 3, 4, 5, 1, 2]
    proposer.reset(choosing(len, 100), ids)
    assert step_of(proposer, ids, [3, 4, 9]) == [3, 4][:gamma]  # of 3, 4, 5, 1
    assert step_of(proposer, ids, [1]) == []  # 9 was never seen
    assert step_of(proposer, ids, [7]) == [2, 3][:gamma]  # after 1, by one token
    of_one, of_two = made[1:]
    assert of_two.heard == [(gamma, 3, 2)] and of_one.heard == [(gamma, 1, 0)]
    assert all(schedule.resets == 1 for schedule in made)


@pytest.mark.parametrize("new, room, heard", [
    ([2, 3, 4, 5], 3, (3, 3, 3)),  # no more is checked than was drafted
    ([2], 3, (3, 1, 1)),  # or committed
    ([2, 3, 9], 2, (2, 3, 2)),  # and no more was proposed than there was room for
])  # fmt: skip
def test_what_a_schedule_hears_of_a_draft_by_hand(new, room, heard):
    schedules, ids = [], [1, 2, 3, 4, 5, 1]
    proposer = PromptLookup(3, 1, length=lambda: schedules.append(Listening(3)) or schedules[-1])
    proposer.reset(choosing(len, 100), ids)
    proposer.observe(drafted(proposer, ids, max_depth=room), [], new, None)
    assert schedules[1].heard == [heard]


@pytest.mark.parametrize("bad, error, said", [
    (dict(min_hit_rate=0.3, length=Listening), ValueError, "give one of them"),
    (dict(rule="best"), ValueError, "choose one of: recent, transformers, original"),
    (dict(num_tokens=0), ValueError, "num_tokens >= 1"),
    (dict(max_ngram=0), ValueError, "max_ngram >= 1"),
    (dict(min_hit_rate=1.5), ValueError, "between 0 and 1"),
    (dict(num_tokens=2.5), TypeError, "num_tokens must be an integer"),
    (dict(length=Constant(2)), TypeError, "a function that makes a schedule"),
])  # fmt: skip
def test_impossible_settings_are_refused(bad, error, said):
    with pytest.raises(error, match=said):
        PromptLookup(**bad)
