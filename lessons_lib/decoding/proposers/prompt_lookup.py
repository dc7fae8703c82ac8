"""Prompt lookup (lesson 07): guess that the text goes on as it did where its last tokens stood before.

No model is needed, only an index from every n-gram to what followed it. Each committed token adds its own
n-grams, so a step costs the same in a long text as in a short one. Saxena, "Prompt Lookup Decoding" (2023).
"""

from collections.abc import Callable, Sequence

from lessons_lib.decoding.draft_tree import DraftTree
from lessons_lib.decoding.probing import agreed
from lessons_lib.decoding.proposers import Proposer, check_integers
from lessons_lib.decoding.proposers.draft_length import DraftLength

RULES = ("recent", "transformers", "original")
UNDECIDED, MEMORY = 0.5, 4  # a hit rate begins here and is a running mean over about so many guesses
SILENT_BELOW = 0.35  # of "recent"; chosen by replaying texts of five kinds to prompts that no benchmark here uses


class NgramIndex:
    """A text that grows, and the index just past the first (or `latest`) occurrence of each of its n-grams.

    An n-gram is entered when a token follows it, so the end of the text never finds itself.
    """

    def __init__(self, max_ngram: int, latest: bool, tokens: Sequence[int] = ()):
        self.max_ngram, self.latest = max_ngram, latest
        self.tokens: list[int] = []
        self.after: dict[tuple[int, ...], int] = {}
        self.extend(tokens)

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens: max_ngram entries each."""
        for token in tokens:
            end = len(self.tokens)
            for n in range(1, min(self.max_ngram, end) + 1):
                ngram = tuple(self.tokens[end - n :])
                if self.latest or ngram not in self.after:
                    self.after[ngram] = end
            self.tokens.append(token)


class PromptLookup(Proposer):
    """Copies up to `num_tokens` tokens from behind an earlier occurrence of the text's last n tokens.

    The longest n from max_ngram down to min_ngram that is found decides. rule says which occurrence, and what
    is done where the text ends before the guess is complete:
    - "recent": the latest; a guess that reaches the end of the text repeats itself, as a loop would;
    - "transformers": the first; the guess is shorter (`prompt_lookup_num_tokens` there, whose max_ngram is 2);
    - "original": the first; there is no guess (Saxena's code). It alone does not stop before an end token.

    corpus: token ids to look in besides the text; for equal n the text goes first.
    min_hit_rate: keep silent about matches of n tokens while fewer of such guesses than this began with the
    right token (running mean, each n its own, 0.5 at first). Silent guesses are judged, too, without a forward pass:
    copying is noticed as soon as it begins. 0 never keeps silent, as the published rules do; None: 0 for them and
    0.35 for "recent". A long guess of k tokens pays above 1 - 1 / v(k + 1).
    length: makes a DraftLength, one for the matches of each n, that says instead how many of the num_tokens to guess,
    such as `lambda: Adaptive(0, v, most=10, probe_every=None)`; it learns from what is kept silent, too.
    Raises ValueError for an unknown rule, sizes or rates that make no sense, a hit rate beside `length`, and a schedule
    that asks for probabilities; TypeError for sizes that are no integers and a `length` that makes no DraftLength.
    """

    def __init__(
        self,
        num_tokens: int = 10,
        max_ngram: int = 3,
        rule: str = "recent",
        min_ngram: int = 1,
        corpus: Sequence[int] = (),
        min_hit_rate: float | None = None,
        length: Callable[[], DraftLength] | None = None,
    ):
        if rule not in RULES:
            raise ValueError(f"rule={rule!r} is not known; choose one of: {', '.join(RULES)}")
        check_integers(num_tokens=num_tokens, max_ngram=max_ngram, min_ngram=min_ngram)
        if num_tokens < 1 or not 1 <= min_ngram <= max_ngram:
            raise ValueError(
                f"num_tokens >= 1 and 1 <= min_ngram <= max_ngram are needed, not {num_tokens}, {min_ngram} and "
                f"{max_ngram}"
            )
        if length is not None and min_hit_rate is not None:
            raise ValueError("min_hit_rate and length both decide when to keep silent; give one of them")
        if min_hit_rate is None:
            min_hit_rate = SILENT_BELOW if rule == "recent" else 0.0
        if not 0 <= min_hit_rate <= 1:
            raise ValueError(f"min_hit_rate is a share between 0 and 1, not {min_hit_rate}")
        self.num_tokens, self.max_ngram, self.min_ngram = num_tokens, max_ngram, min_ngram
        self.rule, self.min_hit_rate = rule, min_hit_rate
        self.corpus = NgramIndex(max_ngram, rule == "recent", corpus)
        self.lengths = None if length is None else [_schedule(length) for _ in range(max_ngram + 1)]
        if any(type(schedule).goes_on is not DraftLength.goes_on for schedule in self.lengths or ()):
            raise ValueError("prompt lookup has no probabilities to stop at; use another schedule than Confidence")

    def reset(self, target, prompt: Sequence[int]) -> None:
        """Forget the text before; the corpus and its index stay, and what schedules of `length` make of other texts."""
        self.text = NgramIndex(self.max_ngram, self.rule == "recent")
        self.eos = frozenset(target.eos)
        self.hit_rate = [UNDECIDED] * (self.max_ngram + 1)
        self.pending: tuple[int, list[int], int] | None = None  # n, the guess that the next step judges, tokens told
        for length in self.lengths or ():
            length.reset()

    def propose(self, ids: Sequence[int], tree: DraftTree) -> None:
        """A chain of at most num_tokens tokens; none without a match, or where matches keep missing."""
        self.learn(ids)
        n, draft = self.lookup(ids)
        if draft:
            tree.add_chain(draft[: self.gated(n)])
        self.pending = (n, draft, len(tree.tokens)) if draft else None

    def gated(self, n: int) -> int:
        """How many tokens of a guess by n tokens the target is to see, at most; 0: keep silent."""
        if self.lengths:
            return self.lengths[n].next()
        return self.num_tokens if self.hit_rate[n] >= self.min_hit_rate else 0

    def observe(self, tree: DraftTree, path: list[int], tokens: list[int], scores) -> None:
        """Judge the guess by the new tokens, whether it was told or not."""
        if self.pending:
            (n, draft, gated), self.pending = self.pending, None
            right = agreed(draft, tokens)
            self.hit_rate[n] += ((right > 0) - self.hit_rate[n]) / MEMORY
            if self.lengths:
                self.lengths[n].observe(gated, min(right + 1, len(draft), len(tokens)), right)

    def learn(self, ids: Sequence[int]) -> None:
        """Index what `ids`, the whole committed text, has more than before."""
        self.text.extend(ids[len(self.text.tokens) :])

    def lookup(self, ids: Sequence[int]) -> tuple[int, list[int]]:
        """ids: the last tokens of a text, max_ngram or more -> n and what followed them; (0, []) if nothing did."""
        for n in range(min(self.max_ngram, len(ids)), self.min_ngram - 1, -1):
            for index in (self.text, self.corpus):
                if draft := self._copy(index, index.after.get(tuple(ids[-n:])), n):
                    return n, self._before_eos(draft)
        return 0, []

    def _copy(self, index: NgramIndex, start: int | None, n: int) -> list[int]:
        """What the rule takes from index.tokens[start:]."""
        if start is None:
            return []
        draft = index.tokens[start : start + self.num_tokens]
        if self.rule == "original":
            whole = len(draft) == self.num_tokens and start < len(index.tokens) - n
            return draft if whole else []  # a later occurrence has even less behind it
        if self.rule == "recent" and index is self.text:
            return (draft * self.num_tokens)[: self.num_tokens]
        return draft

    def _before_eos(self, draft: list[int]) -> list[int]:
        ends = [i for i, token in enumerate(draft) if token in self.eos and self.rule != "original"]
        return draft[: ends[0]] if ends else draft


def _schedule(length: Callable[[], DraftLength]) -> DraftLength:
    """What `length` makes; TypeError for what is no function, and for a function that makes something else."""
    made = length() if callable(length) else length
    if made is length or not isinstance(made, DraftLength):
        raise TypeError(
            f"length must be a function that makes a schedule, such as lambda: Heuristic(5), not {type(made).__name__}"
        )
    return made
