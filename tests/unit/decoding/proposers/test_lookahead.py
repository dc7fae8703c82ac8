"""Lookahead: a mask written by hand, every window token against a pass of its own, pool and slide by hand."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.oracle import exact
from support.proposers import TextLookahead, drafted
from support.targets import targets
from support.toys import choosing, continued

from lessons_lib import Greedy, Lookahead, generate
from lessons_lib.decoding.draft_tree import ModelOutput, make_input
from lessons_lib.decoding.generate import new_sequence, step
from lessons_lib.decoding.proposers.lookahead import Ngrams, window_layout
from lessons_lib.models import tiny

PROMPT = [5, 3, 3, 1, 7]
MAP = choosing(lambda prefix: (3 * prefix[-1] + 1) % 7, 7)


def input_of(proposer, ids, ngrams):
    """The model input of a step whose pool holds these n-grams, and its tree; nothing is cached."""
    proposer.reset(MAP, ids)
    for ngram in ngrams:
        proposer.pool.add(ngram)
    tree, cache = drafted(proposer, ids), MAP.new_cache(0)
    cache.entries = list(enumerate(ids[:-1]))
    return make_input(ids[-1:], tree, cache), tree


def test_the_mask_for_w_5_n_4_g_2_is_the_papers():
    """c, two n-grams a and b, then the window: row 0 (columns 1-4), row 1 and row 2 (columns 0-4)."""
    model_input, _ = input_of(Lookahead(W=5, N=4, G=2), [3], [(3, 10, 11, 12), (3, 20, 21, 22)])
    expected = """
        1 000 000 0000 00000 00000
        1 100 000 0000 00000 00000
        1 110 000 0000 00000 00000
        1 111 000 0000 00000 00000
        1 000 100 0000 00000 00000
        1 000 110 0000 00000 00000
        1 000 111 0000 00000 00000
        1 000 000 1000 00000 00000
        1 000 000 1100 00000 00000
        1 000 000 1110 00000 00000
        1 000 000 1111 00000 00000
        1 000 000 0000 10000 00000
        1 000 000 1000 01000 00000
        1 000 000 1100 00100 00000
        1 000 000 1110 00010 00000
        1 000 000 1111 00001 00000
        1 000 000 0000 10000 10000
        1 000 000 1000 01000 01000
        1 000 000 1100 00100 00100
        1 000 000 1110 00010 00010
        1 000 000 1111 00001 00001"""
    assert model_input.mask.int().tolist() == [[int(c) for c in row if c != " "] for row in expected.split("\n")[1:]]
    assert model_input.offsets == [0, 1, 2, 3, 1, 2, 3, 1, 2, 3, 4, 1, 2, 3, 4, 5, 2, 3, 4, 5, 6]
    assert model_input.tokens[:7] == [3, 10, 11, 12, 20, 21, 22] and len(model_input.tokens) == 1 + (5 + 2) * 3 - 1


@given(W=st.integers(1, 8), N=st.integers(3, 6))
def test_every_window_token_sees_one_token_at_each_position_up_to_its_own(W, N):
    offsets, sees = window_layout(W, N)
    assert len(offsets) == W * (N - 1) - 1
    for own, row in zip(offsets, sees, strict=True):
        assert sorted(offset for offset, seen in zip(offsets, row, strict=True) if seen) == list(range(1, own + 1))


class Recorded(Lookahead):
    """Keeps what it proposed, what it saw, and its rows at that time."""

    def reset(self, target, prompt):
        super().reset(target, prompt)
        self.log = []

    def propose(self, ids, tree):
        super().propose(ids, tree)
        self.at = list(ids), [list(row) for row in self.rows], self.pool.of(ids[-1])

    def observe(self, tree, path, tokens, scores):
        if tree.side.tokens:
            self.log.append((*self.at, tree, tokens, scores.logits))
        super().observe(tree, path, tokens, scores)


class RecordedText(Recorded, TextLookahead):
    """The same, with the text's n-grams in its pool."""


@targets
@pytest.mark.parametrize("W, N", [(5, 4), (2, 3), (3, 5)])
def test_every_token_of_both_branches_is_predicted_as_by_a_pass_of_its_own(target, W, N):
    network, proposer = tiny(vocab_size=11), RecordedText(W, N, G=3)
    seq = new_sequence(target(network), PROMPT * 2, proposer, Greedy(), 14)

    @torch.no_grad()
    def alone(ids):
        return network(torch.tensor([ids])).logits[0, -1]

    with exact(), torch.no_grad():
        while seq.finish_reason is None:
            step(seq_target := target(network), [seq])
        assert seq_target.vocab_size == 11 and len(proposer.log) >= 4
        for ids, rows, _, tree, _, logits in proposer.log[:6]:
            nodes = 1 + len(tree.tokens)
            cells = [(0, i) for i in range(1, W)] + [(r, i) for r in range(1, N - 1) for i in range(W)]
            for (r, i), found in zip(cells, logits[nodes:], strict=True):
                stream = ids + rows[0][1 : i + 1] + [rows[s][i] for s in range(1, r + 1)]
                torch.testing.assert_close(found, alone(stream), rtol=0, atol=1e-10)
            for node, found in enumerate(logits[1:nodes]):
                branch = [tree.tokens[above] for above in tree.path(node)]
                torch.testing.assert_close(found, alone(ids + branch), rtol=0, atol=1e-10)
    assert any(tree.tokens for _, _, _, tree, *_ in proposer.log[:6])


def test_one_slide_by_hand():
    """Next is last + 1 mod 10. Root 5, row 0 = [9, 2], row 1 = [6, 0, 3]."""
    proposer = Lookahead(W=3, N=3)
    proposer.reset(choosing(len, 10), [5])
    proposer.rows, proposer.predicted = [[4, 9, 2], [6, 0, 3]], 1
    tree = drafted(proposer, [5])
    assert tree.side.tokens == [9, 2, 6, 0, 3]
    after = torch.eye(10)[[(token + 1) % 10 for token in (5, *tree.side.tokens)]]
    proposer.observe(tree, [], [6], ModelOutput(after))
    assert {first: proposer.pool.of(first) for first in proposer.pool.ngrams} == {5: [(6, 7)], 9: [(0, 1)], 2: [(3, 4)]}
    assert drafted(proposer, [5, 6]).side.tokens == [0, 3, 7, 1, 4]


def test_the_pool_keeps_the_latest_g_and_refreshes_what_comes_again():
    pool = Ngrams(G=2)
    for ngram in [(1, 10, 11), (1, 20, 21), (1, 10, 11), (1, 30, 31), (2, 40, 41)]:
        pool.add(ngram)
    assert pool.of(1) == [(10, 11), (30, 31)] and pool.of(2) == [(40, 41)] and pool.of(3) == []


@pytest.mark.parametrize("W, N, passes", [(5, 4, 19), (7, 5, 17), (3, 3, 24)])
def test_once_the_pool_knows_how_it_goes_on_a_step_yields_n_tokens(W, N, passes):
    proposer = Recorded(W, N, G=W)
    out = generate(MAP, [2, 5, 1], proposer, max_new_tokens=60)
    assert out.ids == continued(MAP, [2, 5, 1], 60)
    assert abs(len(out.stats) - passes) <= 2
    known = [
        len(tokens)
        for ids, _, candidates, _, tokens, _ in proposer.log
        if tuple(continued(MAP, ids, N - 1)) in candidates and len(ids) + N <= 63
    ]
    assert len(known) > 8 and set(known) == {N}


def test_nothing_is_collected_while_seed_tokens_stand_below_the_first_row():
    proposer = Recorded(5, 5)
    generate(MAP, [2, 5, 1], proposer, max_new_tokens=1 + 4)
    assert len(proposer.log) == 3 and not proposer.pool.ngrams
    generate(MAP, [2, 5, 1], proposer, max_new_tokens=1 + 5)
    assert len(proposer.log) == 4 and proposer.pool.ngrams


def test_an_end_token_does_not_stay_in_the_window():
    proposer = Lookahead(W=2, N=3)
    proposer.reset(choosing(len, 10, eos=(4,)), [7, 8])
    tree = drafted(proposer, [7, 8, 1])
    proposer.observe(tree, [], [1], ModelOutput(torch.eye(10)[[0, 0, 5, 4]]))
    assert proposer.rows[-1][0] == 5 and proposer.rows[-1][1] in (7, 8)


def test_the_last_token_is_decoded_without_window_and_draft():
    out = generate(MAP, [2, 5, 1], Lookahead(), max_new_tokens=2)
    assert [s.num_input_tokens for s in out.stats] == [3, 1]


@pytest.mark.parametrize("bad", [dict(W=0), dict(N=2), dict(G=0)])
def test_impossible_sizes_are_refused(bad):
    with pytest.raises(ValueError, match="W >= 1, N >= 3 and G >= 1 are needed"):
        Lookahead(**bad)
