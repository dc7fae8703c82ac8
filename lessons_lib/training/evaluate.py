"""Evaluation of drafts and heads (lessons 06, 09), by replay along the target's recorded greedy texts.

Greedy output does not depend on the draft, and up to its first wrong token a draft has read exactly that text. So one
forward pass over a text yields every draft token of every possible step. For Medusa heads not even that is needed:
their inputs were stored with the text.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import fmean

import torch

from lessons_lib.decoding import generate
from lessons_lib.decoding.draft_tree import DraftTree, plain_input
from lessons_lib.decoding.generate import StepStats
from lessons_lib.decoding.prediction import Recording, replay, replay_draft
from lessons_lib.decoding.proposers.draft_length import Constant
from lessons_lib.decoding.proposers.medusa import Medusa, MedusaHeads
from lessons_lib.decoding.proposers.tree_shape import TreeShape
from lessons_lib.decoding.targets import Target
from lessons_lib.models.decoder import Decoder, NoCache, Segment
from lessons_lib.training.collect import Text
from lessons_lib.training.medusa import ROWS
from lessons_lib.training.prompts import CATEGORIES

GAMMA = 4  # draft tokens per step when a draft is evaluated
TopTokens = list[list[list[int]]]


def judged(texts: Sequence[Text]) -> Iterator[tuple[str, Text]]:
    """(kind, text) of the texts that count: greedy, with at least two new tokens."""
    for text in texts:
        if text.temperature == 0 and len(text.ids) > text.prompt_length + 1:
            yield text.key.split("/")[0], text


# --- A draft


def evaluate(draft: Decoder, texts: Sequence[Text]) -> dict:
    """Tokens per forward pass of a draft on held-out texts by kind, and its accuracy on single tokens.

    macro: the mean over the CATEGORIES present, of which there must be a greedy text.
    """
    kinds = defaultdict(list)
    for kind, text in judged(texts):
        kinds[kind].append(right(draft, text))
    by_kind = {
        kind: {
            "texts": len(found),
            "tokens_per_pass": round(tokens_per_pass(found, GAMMA), 4),
            "right": round(fmean(hit for text in found for hit in text), 4),
        }
        for kind, found in sorted(kinds.items())
    }
    macro = fmean([by_kind[kind]["tokens_per_pass"] for kind in CATEGORIES if kind in kinds])
    return {"gamma": GAMMA, "macro": macro, "kinds": by_kind}


def right(draft: Decoder, text: Text) -> list[bool]:
    """Whether the draft predicts each answer token, except the first (which the prefill yields)."""
    last = len(draft.layers)
    return right_at_exits(draft, text, [last])[last]


@torch.no_grad()
def right_at_exits(decoder: Decoder, text: Text, exits: Sequence[int]) -> dict[int, list[bool]]:
    """Like `right`, for early exits of the target: {exit layer: hits}. Trim the decoder for a draft vocabulary."""
    start, device = text.prompt_length, decoder.norm.device
    segment = Segment(torch.arange(len(text.ids) - 1, device=device), NoCache())
    states = decoder(torch.tensor(text.ids[:-1], device=device), [segment], after=exits).after
    wanted = torch.tensor(text.ids[start + 1 :], device=device)
    return {layer: (decoder.logits(states[layer][start:]).argmax(-1) == wanted).tolist() for layer in exits}


@torch.no_grad()
def right_in_steps(draft: Target, prompt: Sequence[int], new: Sequence[int]) -> list[bool]:
    """Like `right`, but token by token with the draft's KV cache, as in decoding.

    A pass over few tokens may compute in another format than one over many. prompt, new: ids of a greedy text, at least
    one each.
    """
    cache, found = draft.new_cache(len(prompt) + len(new)), []
    draft.run([plain_input(prompt, cache)])
    for token, following in pairwise(new):
        (output,) = draft.run([plain_input([token], cache)])
        found.append(int(output.logits[-1].argmax()) == following)
    return found


def tokens_per_pass(found: Sequence[Sequence[bool]], gamma: int) -> float:
    """tau over several texts, prefill excluded; NaN without draft tokens. found: `right` of each text."""
    return generate.tokens_per_pass([step for text in found for step in replay_draft(text, Constant(gamma))])


# --- Medusa heads and their tree


class Recorded(Medusa):
    """Medusa with its heads' predictions computed in advance for every position of a text, by `top_tokens`."""

    def __init__(self, heads: MedusaHeads, top_tokens: TopTokens, tree: TreeShape):
        super().__init__(heads, tree)
        self.top_tokens = top_tokens

    def reset(self, target, prompt: Sequence[int]) -> None:
        """Nothing to check: a recording has no vocabulary."""

    def propose(self, ids: Sequence[int], tree: DraftTree) -> None:
        """Fill the tree with the predictions at the last token: state i chose token i + 1."""
        self.fill(tree, self.top_tokens[len(ids) - 2])

    def observe(self, tree, path, tokens, output) -> None:
        """Nothing to do: a recording has no hidden states."""


@torch.no_grad()
def top_tokens(heads: MedusaHeads, text: Text, ranks: int) -> TopTokens:
    """Every head's `ranks` most likely tokens at every state of a text: (T - 1, K, ranks) as lists."""
    parts = zip(text.hidden.to(heads.lm_head).split(ROWS), torch.tensor(text.ids[1:]).split(ROWS), strict=True)
    return [row for part, chosen in parts for row in heads.top_tokens(part, ranks, chosen=chosen).tolist()]


def stats_of(heads: MedusaHeads, text: Text, best: TopTokens, tree: TreeShape) -> list[StepStats]:
    """StepStats of decoding a greedy text with this tree, prefill first. best: the text's `top_tokens`."""
    recording = Recording(text.ids[: text.prompt_length], text.ids[text.prompt_length :])
    return replay(recording, Recorded(heads, best, tree))


def evaluate_heads(heads: MedusaHeads, texts: Sequence[Text], tree: TreeShape) -> dict:
    """Tokens per forward pass of heads with this tree on held-out texts, by kind.

    nodes: of the tree, without its root. macro: the mean over the CATEGORIES present.
    """
    steps = defaultdict(list)
    for kind, text in judged(texts):
        steps[kind] += stats_of(heads, text, top_tokens(heads, text, tree.ranks), tree)
    kinds = {kind: round(generate.tokens_per_pass(of), 4) for kind, of in sorted(steps.items())}
    macro = fmean([kinds[kind] for kind in CATEGORIES if kind in kinds])
    return {"nodes": len(tree.choices), "macro": macro, "kinds": kinds}
