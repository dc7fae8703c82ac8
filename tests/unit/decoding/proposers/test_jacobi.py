"""Jacobi: trajectories worked by hand, the bounds of the iteration, and leftovers that become the next draft."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples
from support.proposers import drafted
from support.targets import targets
from support.toys import choosing, continued, whimsical

from lessons_lib import Jacobi, generate
from lessons_lib.decoding.draft_tree import ModelOutput
from lessons_lib.decoding.proposers.jacobi import iterates
from lessons_lib.models import tiny

MAP = choosing(lambda prefix: (3 * prefix[-1] + 1) % 7, 7)  # 2 is followed by 0, 1, 4, 6, 5, 2


class Steady(Jacobi):
    """Fills up with the prompt's last token, so that drafts can be worked out by hand."""

    def reset(self, target, prompt):
        super().reset(target, prompt)
        last = prompt[-1]  # read now: the list grows with the text
        self.rng = SimpleNamespace(choice=lambda ids: last)


def starting_with(guess) -> Jacobi:
    """A proposer whose first draft is given."""

    class Given(Steady):
        def reset(self, target, prompt):
            super().reset(target, prompt)
            self.first = list(guess)

        def propose(self, ids, tree):
            self.predicted, self.first = self.first or self.predicted, None
            super().propose(ids, tree)

    return Given(n=len(guess) + 1)


@pytest.mark.parametrize("guess, trajectory", [
    ([0, 0, 0, 0], ["0000", "0111", "0144", "0146", "0146"]),
    ([5, 5, 5, 5], ["5555", "0222", "0100", "0141", "0146", "0146"]),
    ([0, 1, 4, 6], ["0146", "0146"]),
])  # fmt: skip
def test_textbook_iterates_as_by_hand(guess, trajectory):
    assert ["".join(map(str, row)) for row in iterates(MAP, [2], guess)] == trajectory


@examples(150)
@given(seed=st.integers(0, 10**6), m=st.integers(1, 7), prompt=st.lists(st.integers(0, 3), min_size=1, max_size=3))
def test_k_rounds_make_the_first_k_tokens_final(seed, m, prompt):
    target = whimsical(seed, 4)
    truth = continued(target, prompt, m)
    rows = iterates(target, prompt, [seed % 4] * m)
    assert rows[-1] == truth and len(rows) - 1 <= m + 1
    assert all(row[:k] == truth[:k] for k, row in enumerate(rows))


@targets
def test_iterates_of_a_network_end_in_its_greedy_text(target):
    target = target(tiny(vocab_size=11))
    prompt = [5, 3, 3, 1]
    assert iterates(target, prompt, [0] * 8)[-1] == generate(target, prompt, max_new_tokens=8).ids


@pytest.mark.parametrize("guess, committed", [([0, 0, 0], [2, 1, 1, 1, 1]), ([0, 1, 4], [4, 2]), ([5, 5, 5], [1] * 6)])
def test_tokens_per_step_as_by_hand(guess, committed):
    """Prompt [6, 5]: the prefill commits 2, the steps 0, 1, 4, 6, 5, 2."""
    out = generate(MAP, [6, 5], starting_with(guess), max_new_tokens=7)
    assert out.ids == [2, 0, 1, 4, 6, 5, 2]
    assert [s.committed for s in out.stats] == [1, *committed]


def test_the_next_draft_is_what_was_predicted_after_the_bonus_then_filling():
    proposer = Steady(5)
    proposer.reset(MAP, [8, 9])
    tree = drafted(proposer, [8, 9, 0])
    assert tree.tokens == [9, 9, 9, 9]
    said = torch.eye(10)[[9, 1, 2, 3, 4]]  # after the root and nodes 0 to 3
    proposer.observe(tree, [0], [9, 1], ModelOutput(said))
    tree = drafted(proposer, [8, 9, 0, 9, 1])
    assert tree.tokens == [2, 3, 4, 9]
    proposer.observe(tree, [0, 1, 2, 3], [2, 3, 4, 9, 5], ModelOutput(torch.eye(10)[[2, 3, 4, 9, 5]]))
    assert drafted(proposer, [8, 9, 0, 9, 1, 2, 3, 4, 9, 5]).tokens == [9, 9, 9, 9]


def first_draft(seed: int) -> list[int]:
    proposer = Jacobi(5, seed)
    proposer.reset(MAP, [3, 1, 8])
    return drafted(proposer, [3, 1, 8]).tokens


def test_the_filling_is_drawn_from_the_text_by_the_seed():
    samples = {tuple(first_draft(seed)) for seed in range(9)}
    assert len(samples) > 3 and all(set(draft) <= {3, 1, 8} for draft in samples)
    assert first_draft(4) == first_draft(4)


@pytest.mark.parametrize("call, said", [
    (lambda: Jacobi(1), "n must be at least 2"),
    (lambda: iterates(MAP, [], [1]), "prompt and guess need at least one token each"),
    (lambda: iterates(MAP, [1], []), "prompt and guess need at least one token each"),
])  # fmt: skip
def test_impossible_settings_are_refused(call, said):
    with pytest.raises(ValueError, match=said):
        call()
