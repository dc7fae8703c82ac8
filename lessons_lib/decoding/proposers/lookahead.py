"""Lookahead decoding (lesson 08): a Jacobi window collects n-grams, and those that fit are verified beside it.

One forward holds two branches that do not see each other. The window, W columns of N - 1 side tokens,
predicts one more token in every column; a column read downwards is an n-gram that the target itself made up, and
goes into a pool. The draft tree holds the pool's n-grams that begin with the last committed
token. Fu et al. 2024 (arXiv 2402.02057), with their letters W, N, G.
"""

import random
from collections.abc import Sequence

from lessons_lib.decoding.draft_tree import DraftTree, ModelOutput, SideTokens
from lessons_lib.decoding.proposers import Proposer, check_integers
from lessons_lib.decoding.sampling import top_tokens


class Ngrams:
    """First token -> the N - 1 tokens that followed it, the G latest different ones, oldest first."""

    def __init__(self, G: int):
        self.G = G
        self.ngrams: dict[int, dict[tuple[int, ...], None]] = {}  # a dict as an ordered set

    def add(self, ngram: Sequence[int]) -> None:
        """Enter an n-gram (N tokens), or make a known one the latest."""
        first, *rest = ngram
        kept = self.ngrams.setdefault(first, {})
        kept.pop(tuple(rest), None)
        kept[tuple(rest)] = None
        if len(kept) > self.G:
            del kept[next(iter(kept))]

    def of(self, first: int) -> list[tuple[int, ...]]:
        """What may follow this token."""
        return list(self.ngrams.get(first, ()))


class Lookahead(Proposer):
    """W: columns of the window; N >= 3: tokens of an n-gram; G: n-grams kept per first token and verified at once.

    A step feeds up to (W + G)(N - 1) tokens and commits up to N. The window starts with tokens drawn from the
    prompt by `seed`, and always predicts greedily, so it serves sampling as well. It moves on by one token a step
    however many were accepted, as the authors' code does: it is a source of guesses, not part of the text.
    pool_from_text: enter the n-grams of prompt and output, too. Raises ValueError for sizes that make no sense.
    """

    def __init__(self, W: int = 5, N: int = 4, G: int = 5, pool_from_text: bool = False, seed: int = 0):
        check_integers(W=W, N=N, G=G)
        if W < 1 or N < 3 or G < 1:
            raise ValueError(f"W >= 1, N >= 3 and G >= 1 are needed, not {W}, {N}, {G}; N = 2 would be Jacobi")
        self.W, self.N, self.G, self.pool_from_text, self.seed = W, N, G, pool_from_text, seed
        self.offsets, self.sees = window_layout(W, N)

    def reset(self, target, prompt: Sequence[int]) -> None:
        """An empty pool and a window of seed tokens."""
        self.rng, self.prompt, self.eos = random.Random(self.seed), list(prompt), frozenset(target.eos)
        self.pool, self.predicted, self.read = Ngrams(self.G), 0, 0
        # rows[r][i] is the token of row r in column i; rows[0][0] stands for the root
        self.rows = [[self.rng.choice(self.prompt) for _ in range(self.W)] for _ in range(self.N - 1)]

    def propose(self, ids: Sequence[int], tree: DraftTree) -> None:
        """The window, and the pool's n-grams that begin with the root."""
        if tree.max_depth < 1:
            return  # the last token: neither draft tokens nor a larger pool can help
        if self.pool_from_text:
            self._read(ids)
        self.rows[0][0] = ids[-1]
        window = [token for row in self.rows for token in row][1:]
        tree.add_side(SideTokens(window, self.offsets, self.sees))
        for ngram in self.pool.of(ids[-1]):
            tree.add_chain(ngram)

    def observe(self, tree: DraftTree, path: list[int], tokens: list[int], scores: ModelOutput) -> None:
        """Take the window's new row, collect its columns as n-grams, move every row up by one."""
        if not tree.side.tokens:
            return
        new = top_tokens(scores.logits[-self.W :])
        if self.predicted >= self.N - 2:  # every row but the first is predicted, no longer seeded
            for ngram in zip(*self.rows, new, strict=True):
                self.pool.add(ngram)
        self.predicted += 1
        # behind an end token there is nothing worth predicting
        self.rows = [*self.rows[1:], [self.rng.choice(self.prompt) if t in self.eos else t for t in new]]

    def _read(self, ids: Sequence[int]) -> None:
        """Enter the n-grams of the committed text that were not entered before."""
        for end in range(max(self.read + 1, self.N), len(ids) + 1):
            self.pool.add(ids[end - self.N : end])
        self.read = len(ids)


def window_layout(W: int, N: int) -> tuple[list[int], list[list[bool]]]:
    """-> offsets (m) and sees (m, m) of the window without its root, m = W(N - 1) - 1, row by row.

    Column i of row r stands r + i behind the root and sees row 0 up to column i, then its own column down to
    itself: exactly one token at every position before its own.
    """
    cells = [(r, i) for r in range(N - 1) for i in range(W)][1:]
    offsets = [r + i for r, i in cells]
    sees = [[(s == 0 and j <= i) or (s <= r and j == i) for s, j in cells] for r, i in cells]
    return offsets, sees
