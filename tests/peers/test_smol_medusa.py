"""The heads that come with the package, on the default model: they fit, keep its text, and earn their place."""

from lessons_lib import Medusa, generate
from lessons_lib.decoding.generate import tokens_per_pass
from lessons_lib.decoding.proposers.medusa import load_heads
from lessons_lib.decoding.proposers.tree_shape import best_tree
from lessons_lib.models import read_card
from lessons_lib.models.trained import OURS, WEIGHTS

HEADS = "smol-medusa"
QUESTION = [{"role": "user", "content": "Write a Python function that returns the n-th Fibonacci number."}]
LENGTH = dict(max_new_tokens=40, min_new_tokens=40)


def test_four_heads_of_at_most_4_mb_with_what_they_were_worth():
    card = read_card(HEADS)
    assert card["count"] == 4 and (OURS / HEADS / WEIGHTS).stat().st_size <= 4e6
    before, after = ([sum(row[:5]) for row in card[when]["accuracies"]] for when in ("before", "after"))
    assert all(old < new for old, new in zip(before, after, strict=True))
    assert after == sorted(after, reverse=True)  # further ahead is harder


def test_they_keep_the_models_text_and_save_it_passes(smollm2):
    target, card = smollm2.target(), read_card(HEADS)
    proposer = Medusa(load_heads(HEADS, smollm2, count=4), best_tree(card["after"]["accuracies"], 16))
    plain, guessed = (generate(target, QUESTION, by, **LENGTH) for by in (None, proposer))
    assert guessed.ids == plain.ids
    assert tokens_per_pass(guessed.stats) > 1.3
