"""How good a draft is (lesson 06), counted by replay along the target's recorded greedy text.

Greedy output does not depend on the draft, and a greedy draft that has been right so far has read that very
text; so one forward over a text gives every guess that the draft would have made at any of its steps.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise

import torch

from lessons_lib.decoding import generate
from lessons_lib.decoding.blocks import plain_block
from lessons_lib.decoding.proposers.draft_length import Constant
from lessons_lib.decoding.replay import replay_draft
from lessons_lib.decoding.targets.base import Target
from lessons_lib.models.decoder import Decoder
from lessons_lib.training.batched import Text
from lessons_lib.training.distill import read
from lessons_lib.training.held_out import CATEGORIES

GAMMAS = (1, 2, 3, 4, 5, 6, 8)


def evaluate(draft: Decoder, texts: Sequence[Text], gamma: int = 4) -> dict:
    """Held-out texts -> tokens per forward by kind and by gamma, and how often single guesses were right.

    macro is the mean over the kinds in CATEGORIES that are there, at `gamma`. Only greedy texts count; NaN without any.
    ValueError for a gamma below 1.
    """
    kinds = defaultdict(list)
    for kind, text in judged(texts):
        kinds[kind].append(right(draft, text))
    by_kind = {kind: row(found, gamma) for kind, found in sorted(kinds.items())}
    counted = [kind for kind in CATEGORIES.values() if kind in kinds]
    return {
        "gamma": gamma,
        "macro": mean([by_kind[kind]["tokens_per_forward"] for kind in counted]),
        "kinds": by_kind,
        "by_gamma": {g: mean([tokens_per_forward(kinds[kind], g) for kind in counted]) for g in GAMMAS},
    }


def judged(texts: Sequence[Text]) -> Iterator[tuple[str, Text]]:
    """The texts that count, each behind its kind: greedy, of two new tokens or more."""
    for text in texts:
        if text.temperature == 0 and len(text.ids) > text.prompt_length + 1:
            yield text.key.split("/")[0], text


def row(found: Sequence[Sequence[bool]], gamma: int) -> dict[str, float]:
    """One kind's figures: texts, tokens per forward, share of right guesses. ValueError for a gamma below 1."""
    guesses = [guess for text in found for guess in text]
    return {
        "texts": len(found),
        "tokens_per_forward": round(tokens_per_forward(found, gamma), 4),
        "right": round(mean(guesses), 4),
    }


@torch.no_grad()
def right(draft: Decoder, text: Text) -> list[bool]:
    """For each answer token but the first, which the prefill yields: would the draft have guessed it?

    As many as the text has ids (T,) behind prompt and first token; none for a shorter one.
    """
    start = text.prompt_length
    logits = draft.logits(read(draft, [text.ids[:-1]])[start:])
    return (logits.argmax(-1) == torch.tensor(text.ids[start + 1 :])).tolist()


@torch.no_grad()
def right_in_steps(draft: Target, prompt: Sequence[int], new: Sequence[int]) -> list[bool]:
    """As `right`, token by token through the draft's cache, which is how it drafts: few rows may be computed in
    another format than many. prompt, new: ids of a greedy text, at least one each."""
    cache, found = draft.new_cache(len(prompt) + len(new)), []
    draft.run([plain_block(prompt, cache)])
    for token, following in pairwise(new):
        (scores,) = draft.run([plain_block([token], cache)])
        found.append(int(scores.logits[-1].argmax()) == following)
    return found


def tokens_per_forward(found: Sequence[Sequence[bool]], gamma: int) -> float:
    """tau over several texts: tokens committed over verification forwards, the prefill and its token left out.

    found: for each text, as `right`. NaN without guesses; ValueError for a gamma below 1.
    """
    return generate.tokens_per_forward([step for text in found for step in replay_draft(text, Constant(gamma))])


def mean(values: Sequence[float]) -> float:
    """The arithmetic mean; nan of nothing."""
    return sum(values) / len(values) if values else float("nan")
