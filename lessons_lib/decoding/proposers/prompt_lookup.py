"""Prompt lookup decoding (lesson 07): draft the tokens that followed an earlier occurrence of the last n-gram.

Needs no draft model, only an index from every n-gram to the position after it. Each committed token adds its own
n-grams to the index, so the cost of a step does not grow with the text. Saxena, "Prompt Lookup Decoding" (2023).
"""

from collections.abc import Callable, Sequence
from itertools import takewhile

from lessons_lib.decoding.checks import check_integers
from lessons_lib.decoding.draft_tree import DraftTree
from lessons_lib.decoding.probing import agreed
from lessons_lib.decoding.proposers import Proposer
from lessons_lib.decoding.proposers.draft_length import Confidence, DraftLength

RULES = ("recent", "transformers", "original")
UNDECIDED, MEMORY = 0.5, 4  # initial hit rate; the running mean covers about 4 drafts
MIN_HIT_RATE = 0.35  # min_hit_rate of "recent"; chosen by replaying five kinds of text that no benchmark here uses


class NgramIndex:
    """A growing text, with the position after the first (or `latest`) occurrence of each of its n-grams.

    An n-gram is entered only when a token follows it, so the last n-gram of the text does not match itself.
    """

    def __init__(self, max_ngram: int, latest: bool):
        self.max_ngram, self.latest = max_ngram, latest
        self.tokens: list[int] = []
        self.after: dict[tuple[int, ...], int] = {}

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens. Each one enters the n-grams that end before it, at most max_ngram."""
        for token in tokens:
            end = len(self.tokens)
            for n in range(1, min(self.max_ngram, end) + 1):
                ngram = tuple(self.tokens[end - n :])
                if self.latest or ngram not in self.after:
                    self.after[ngram] = end
            self.tokens.append(token)


class PromptLookup(Proposer):
    """Drafts up to `num_tokens` tokens by copying those after an earlier occurrence of the text's last n tokens.

    In transformers, num_tokens is `prompt_lookup_num_tokens` and max_ngram `max_matching_ngram_size`, which is 2 there.
    The longest n with a match is used, from max_ngram down to 1. rule: which occurrence is copied, and what
    happens if the text ends before the draft has num_tokens tokens:
    - "recent": the latest; the copied tokens are repeated up to num_tokens, as in a loop;
    - "transformers": the first; the draft is shorter;
    - "original": the first; no draft, as in Saxena's code. Only this rule does not stop before an EOS token.

    min_hit_rate: a draft from an n-gram match is proposed only if its first token was right in at least this share of
    earlier drafts (running mean per n, 0.5 at first). Gated drafts are compared with the committed tokens as well, at
    no extra forward pass, so the rate rises as soon as the text repeats. 0 gates nothing, as in the published rules.
    None is 0.35 for "recent", else 0. A long draft of k tokens pays off above a rate of 1 - 1 / v(k + 1).
    length: instead of min_hit_rate, a function that makes a DraftLength, which then chooses how many of the num_tokens
    to propose, such as `lambda: Adaptive(0, v, most=10, probe_every=None)`. Each n has its own; it also learns from
    gated drafts.
    """

    def __init__(
        self,
        num_tokens: int = 10,
        max_ngram: int = 3,
        rule: str = "recent",
        min_hit_rate: float | None = None,
        length: Callable[[], DraftLength] | None = None,
    ):
        if rule not in RULES:
            raise ValueError(f"rule={rule!r} is not known; choose one of: {', '.join(RULES)}")
        check_integers(num_tokens=num_tokens, max_ngram=max_ngram)
        if num_tokens < 1 or max_ngram < 1:
            raise ValueError(f"num_tokens >= 1 and max_ngram >= 1 are needed, not {num_tokens} and {max_ngram}")
        if length is not None and min_hit_rate is not None:
            raise ValueError("min_hit_rate and length both decide when a draft is gated; give one of them")
        if min_hit_rate is None:
            min_hit_rate = MIN_HIT_RATE if rule == "recent" else 0.0
        if not 0 <= min_hit_rate <= 1:
            raise ValueError(f"min_hit_rate is a share between 0 and 1, not {min_hit_rate}")
        self.num_tokens, self.max_ngram = num_tokens, max_ngram
        self.rule, self.min_hit_rate = rule, min_hit_rate
        self.lengths = None
        if length is not None:
            self.lengths = [length() if callable(length) else length for _ in range(max_ngram + 1)]
            if not callable(length) or not all(isinstance(made, DraftLength) for made in self.lengths):
                raise TypeError("length must be a function that makes a schedule, such as lambda: Constant(5)")
            if isinstance(self.lengths[0], Confidence):
                raise ValueError("prompt lookup has no probabilities to stop at; use another schedule than Confidence")

    def reset(self, target, prompt: Sequence[int]) -> None:
        """Start a new text. Schedules from `length` may carry their estimates over."""
        self.text = NgramIndex(self.max_ngram, self.rule == "recent")
        self.eos = frozenset(target.eos)
        self.hit_rate = [UNDECIDED] * (self.max_ngram + 1)
        self.pending: tuple[int, list[int], int] | None = None  # n, the draft to be compared, tokens proposed of it
        for length in self.lengths or ():
            length.reset()

    def propose(self, ids: Sequence[int], tree: DraftTree) -> None:
        """Add a chain of at most num_tokens tokens; nothing without a match, or if the match is gated."""
        self.text.extend(ids[len(self.text.tokens) :])  # what was committed since the last step
        n, draft = self.lookup(ids)
        if draft:
            tree.add_chain(draft[: self.limit(n)])
        self.pending = (n, draft, len(tree.tokens)) if draft else None

    def limit(self, n: int) -> int:
        """Limit of the tokens proposed from an n-gram match; 0 if its hit rate is too low."""
        if self.lengths:
            return self.lengths[n].next()
        return self.num_tokens if self.hit_rate[n] >= self.min_hit_rate else 0

    def observe(self, tree: DraftTree, path: list[int], tokens: list[int], output) -> None:
        """Compare the draft with the committed tokens, whether it was proposed or withheld, and update the hit rate."""
        if self.pending:
            (n, draft, limit), self.pending = self.pending, None
            right = agreed(draft, tokens)
            self.hit_rate[n] += ((right > 0) - self.hit_rate[n]) / MEMORY
            if self.lengths:
                self.lengths[n].observe(limit, min(right + 1, len(draft), len(tokens)), right)

    def lookup(self, ids: Sequence[int]) -> tuple[int, list[int]]:
        """Find the longest match of the end of `ids` -> n and the tokens to draft; (0, []) without a match.

        ids: at least the last max_ngram tokens of the text.
        """
        for n in range(min(self.max_ngram, len(ids)), 0, -1):
            if draft := self._copy(self.text.after.get(tuple(ids[-n:])), n):
                if self.rule != "original":  # nothing follows an end token
                    draft = list(takewhile(lambda token: token not in self.eos, draft))
                return n, draft
        return 0, []

    def _copy(self, start: int | None, n: int) -> list[int]:
        """The draft that the rule copies from the text at `start`."""
        if start is None:
            return []
        draft = self.text.tokens[start : start + self.num_tokens]
        if self.rule == "original":
            whole = len(draft) == self.num_tokens and start < len(self.text.tokens) - n
            return draft if whole else []  # too short; a later occurrence would be even shorter
        return (draft * self.num_tokens)[: self.num_tokens] if self.rule == "recent" else draft
