"""A row and the loop's body (lesson 06): propose, run the target once, accept a path, commit it.

`step` is the whole of decoding: `generate` repeats it with one row, the serving engine with those that its
scheduler picked. No technique is named here; they differ in their proposers, rules and targets alone.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter

import torch
from torch import Tensor

from lessons_lib.caches.cache import Cache
from lessons_lib.decoding.acceptance import Acceptance
from lessons_lib.decoding.blocks import Block, Scores, make_block
from lessons_lib.decoding.proposal import NO_GUESSES, Proposal, Tree
from lessons_lib.decoding.proposers import Observation, Proposer
from lessons_lib.decoding.stopping import StoppedText
from lessons_lib.decoding.trace import Step


@dataclass
class Ending:
    """When a row ends. eos: ids that end it; stop: its new text, given every new token once (None: no stop texts)."""

    max_new_tokens: int
    min_new_tokens: int
    eos: frozenset[int]
    stop: StoppedText | None

    def reason(self, token: int, count: int) -> str | None:
        """Why a text ends with this token, the `count`-th new one: "eos", "stop", "length", or None: it goes on."""
        if self.stop:
            self.stop.add(token)
        if token in self.eos and count > self.min_new_tokens:
            return "eos"
        if self.stop and self.stop.ended:
            return "stop"
        return "length" if count >= self.max_new_tokens else None


@dataclass
class Planned:
    """A row's plan for one forward."""

    tree: Tree
    proposal: Proposal
    block: Block
    completes: bool  # whether the forward reaches the anchor, so that tokens can be committed


@dataclass
class Row:
    """One sequence in the making. ids: prompt and committed tokens; the cache lacks the last of them, or more.

    context: positions the target has. chunk: at most so many tokens are fed in one step, guesses included (None: any
    number).
    """

    ids: list[int]
    prompt_length: int
    cache: Cache
    ending: Ending
    proposer: Proposer
    acceptance: Acceptance
    generator: torch.Generator | None
    context: int
    chunk: int | None = None
    trace: list[Step] = field(default_factory=list)
    finish: str | None = None

    @property
    def new(self) -> list[int]:
        """The tokens committed so far, without the prompt."""
        return self.ids[self.prompt_length :]

    def draft(self) -> Planned:
        """What to feed: what is due of the prompt, or the anchor and the guesses.

        Errors are the proposer's and, for scratch that cannot be laid out, those of `make_block`.
        """
        cached = self.cache.length()
        lacking = self.ids[cached : len(self.ids) if self.chunk is None else cached + self.chunk]
        completes = cached + len(lacking) == len(self.ids)
        room, left = self._room(len(lacking)), self.prompt_length + self.ending.max_new_tokens - len(self.ids)
        limit = min(room, left - 1)  # the step adds one itself
        early = len(self.ids) == self.prompt_length or not completes  # the anchor of all guesses must be fed first
        proposal = NO_GUESSES if early else self.proposer.propose(self.ids, limit)
        proposal, tree = self._fitting(proposal, limit, room)
        proposal, tree = self._readable(proposal, tree, cached + len(lacking))
        block = make_block(lacking, tree, proposal.scratch, self.cache, self.proposer.after)
        return Planned(tree, proposal, block, completes)

    def _room(self, lacking: int) -> float:
        """How many guesses may be fed behind so many tokens: the cache must hold and `chunk` allow them."""
        held = math.inf if self.cache.most is None else self.cache.most - self.cache.length()
        return max(0, min(held, math.inf if self.chunk is None else self.chunk) - lacking)

    def _fitting(self, proposal: Proposal, limit: int, room: float) -> tuple[Proposal, Tree]:
        """The proposal and its tree, no scratch beyond the last position; nothing of it if there is no room for it."""
        scratch = proposal.scratch
        if scratch and max(scratch.offsets, default=0) > self.context - len(self.ids):
            proposal, scratch = replace(proposal, scratch=None), None
        tree = Tree.of(proposal, limit)
        fed = len(tree.tokens) + (len(scratch.tokens) if scratch else 0)
        return (proposal, tree) if fed <= room else (NO_GUESSES, Tree())

    def _readable(self, proposal: Proposal, tree: Tree, entries: int) -> tuple[Proposal, Tree]:
        """The first chain of the tree alone, where the cache can no longer take branches. entries: before drafts."""
        scratch = proposal.scratch
        entries += len(tree.tokens) + (len(scratch.tokens) if scratch else 0)
        if (tree.is_chain and not scratch) or self.cache.branches(entries):
            return proposal, tree
        return replace(proposal, scratch=None), tree.first_chain()

    def accept(self, planned: Planned, scores: Scores) -> tuple[list[int], list[int]]:
        """Ask the acceptance rule, whose errors come through, end the text where it must end -> (path, tokens)."""
        if not planned.completes:
            return [], []
        nodes = 1 + len(planned.tree.tokens)
        logits = self._hold_back_eos(planned.tree, scores.logits[:nodes])
        path, bonus = self.acceptance.accept(planned.tree, logits, self.generator)
        return path, self._until_end([planned.tree.tokens[node] for node in path] + [bonus])

    def commit(self, planned: Planned, path: list[int], tokens: list[int], scores: Scores) -> None:
        """Keep the cache entries of what was committed, all but the last token's, and tell the proposer."""
        if not planned.completes:
            return
        first = len(self.ids)  # entry of node 0: everything committed so far is cached now
        path = path[: max(0, len(tokens) - 1)] if len(tokens) <= len(path) else path
        self.cache.keep(first, [first + node for node in path])
        self.ids.extend(tokens)
        self.proposer.observe(observation(planned, path, tokens, scores))

    def _hold_back_eos(self, tree: Tree, logits: Tensor) -> Tensor:
        """No end of text before min_new_tokens, at whatever depth of the tree a row of logits stands."""
        missing = self.ending.min_new_tokens - (len(self.ids) - self.prompt_length)
        if missing <= 0 or not self.ending.eos:
            return logits
        early = [row for row, depth in enumerate([0, *tree.depths]) if depth < missing]
        logits = logits.clone()
        logits[torch.tensor(early)[:, None], torch.tensor(sorted(self.ending.eos))] = float("-inf")
        return logits

    def _until_end(self, tokens: list[int]) -> list[int]:
        committed = len(self.ids) - self.prompt_length
        for count, token in enumerate(tokens, 1):
            self.finish = self.ending.reason(token, committed + count)
            if self.finish:
                return tokens[:count]
        return tokens


def step(target, rows: Sequence[Row]) -> list[list[int]]:
    """One target forward for any number of rows, each of which records a Step -> the tokens that each committed.

    0 tokens in a part of a prompt, else 1 to n. Errors are those of the target, the proposers and acceptance rules.
    """
    committed, start = [], perf_counter()
    plans = [row.draft() for row in rows]
    proposed = perf_counter()
    scored = target.run([planned.block for planned in plans])
    run = perf_counter()
    for row, planned, scores in zip(rows, plans, scored, strict=True):
        since = perf_counter()
        path, tokens = row.accept(planned, scores)
        accepted = perf_counter()
        row.commit(planned, path, tokens, scores)
        times = proposed - start, run - proposed, accepted - since, perf_counter() - accepted
        row.trace.append(record(row, planned, path, tokens, times))
        committed.append(tokens)
    return committed


def record(row: Row, planned: Planned, path: list[int], tokens: list[int], times: tuple[float, ...]) -> Step:
    """The trace's record of one row's share of a step that is done; times: seconds of its four parts."""
    before = len(row.ids) - len(tokens)
    return Step(
        length_before=before,
        forwarded=len(planned.block.tokens),
        proposed=len(planned.tree.tokens),
        depth=max(planned.tree.depths, default=0),
        scratch=len(planned.proposal.scratch.tokens) if planned.proposal.scratch else 0,
        accepted=min(len(path), len(tokens)),
        committed=len(tokens),
        draft_calls=planned.proposal.draft_calls,
        is_prefill=before == row.prompt_length,
        eos_cut=row.finish == "eos" and len(tokens) <= len(path),
        t_propose=times[0],
        t_forward=times[1],
        t_accept=times[2],
        t_commit=times[3],
        t_total=sum(times),
    )


def observation(planned: Planned, path: list[int], tokens: list[int], scores: Scores) -> Observation:
    """Translate what a step found from the merged tree's numbering to the proposer's."""
    tree, nodes = planned.tree, 1 + len(planned.tree.tokens)
    theirs = {merged: node for node, merged in reversed(list(enumerate(tree.merged))) if merged is not None}
    fed = {node: scores.logits[1 + merged] for node, merged in enumerate(tree.merged) if merged is not None}
    last = 1 + path[-1] if path else 0
    rows = [last, *range(nodes, len(scores.logits))]
    return Observation(
        path=[theirs[node] for node in path],
        tokens=tokens,
        node_logits=fed,
        scratch_logits=scores.logits[nodes:] if planned.proposal.scratch else None,
        states={name: states[rows] for name, states in scores.states.items()},
    )
