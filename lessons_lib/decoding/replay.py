"""Counting without a model (lessons 06, 07): what a proposer saves on a text that is written already.

Greedy text does not depend on the proposer. A recorded one therefore answers for every setting of a proposer that
looks at token ids alone: no forward is run, and a replay takes milliseconds.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from lessons_lib.decoding.draft_tree import ROOT, DraftTree
from lessons_lib.decoding.generate import Step, after_prefill
from lessons_lib.decoding.proposers import Proposer
from lessons_lib.decoding.proposers.draft_length import DraftLength
from lessons_lib.measure.speculation import WidthCurve, width_cost


@dataclass(frozen=True)
class Recording:
    """Ids of a prompt and of the greedy text that followed. eos: ids that end a text; max_new_tokens: of the run
    that was recorded (None: as many as were written). Raises ValueError if prompt or text is empty."""

    prompt: Sequence[int]
    new: Sequence[int]
    eos: tuple[int, ...] = ()
    max_new_tokens: int | None = None

    def __post_init__(self):
        if not len(self.prompt) or not len(self.new):
            raise ValueError("a recording needs a prompt and a text of at least one token each")


def replay(recording: Recording, proposer: Proposer) -> list[Step]:
    """The trace that `generate` would have with this proposer, prefill first, without times.

    For proposers that ask nothing of a target but its `eos`, and nothing of the model output; AttributeError or
    TypeError for others. ValueError for what the proposer refuses.
    """
    text, at = [*recording.prompt, *recording.new], len(recording.prompt)
    end = at + (recording.max_new_tokens or len(recording.new))
    proposer.reset(recording, list(recording.prompt))
    proposer.observe(DraftTree(), [], [text[at]], None)
    trace = [Step(length_before=at, forwarded=at, committed=1, is_prefill=True)]
    at += 1
    while at < len(text):
        tree = DraftTree(max_depth=end - at - 1)  # the step adds one token itself
        proposer.propose(text[:at], tree)
        path = follow(tree, text[at:])
        committed = min(len(path) + 1, len(text) - at)
        proposer.observe(tree, path, text[at : at + committed], None)
        trace.append(Step(at, 1 + len(tree.tokens), len(tree.tokens), tree.depth, 0, len(path), committed))
        at += committed
    return trace


def follow(tree: DraftTree, text: Sequence[int]) -> list[int]:
    """The nodes of the longest path from the root that the text, the ids after it, takes."""
    path, node = [], ROOT
    for token in text:
        if (node := tree.child(node, token)) is None:
            break
        path.append(node)
    return path


def replay_draft(right: Sequence[bool], length: DraftLength) -> list[Step]:
    """The trace, without the prefill, of a draft model that guesses one chain as deep as `length` says.

    right: for every token behind the first, whether the draft guesses it, having read all tokens before it: a
    greedy draft has read the very text, or it would have been rejected. For schedules that ask for no confidence,
    and texts that end because they are long enough.
    """
    length.reset()
    trace, at = [], 0
    while at < len(right):
        guesses = right[at : at + min(length.next(), len(right) - at - 1)]  # the step adds one token itself
        gamma, accepted = len(guesses), first_wrong(guesses)
        if gamma:
            length.observe(gamma, min(accepted + 1, gamma), accepted)
        trace.append(Step(at, 1 + gamma, gamma, gamma, 0, accepted, accepted + 1, draft_calls=gamma))
        at += accepted + 1
    return trace


def first_wrong(guesses: Sequence[bool]) -> int:
    """How many guesses stand before the first wrong one: [True, False, True] -> 1."""
    return next((count for count, guess in enumerate(guesses) if not guess), len(guesses))


def predicted_speed(trace: Sequence[Step], v: WidthCurve = None, c: float = 0.0) -> float:
    """Speed over plain decoding, prefill left out: tokens over the sum of v(rows fed) and c for each draft call.

    v, c: as in `measure.speculation`; 0 for guesses that are free. nan for a trace of the prefill alone.
    Errors as `predicted_cost`.
    """
    steps = after_prefill(trace)
    return sum(step.committed for step in steps) / predicted_cost(steps, v, c) if steps else float("nan")


def predicted_cost(steps: Sequence[Step], v: WidthCurve = None, c: float = 0.0) -> float:
    """What steps cost in units of a one-row forward: v(rows fed) each, and c for each draft call.

    ValueError for a v without widths.
    """
    v = width_cost(v)
    return sum(v(step.forwarded) + c * step.draft_calls for step in steps)


def predicted_seconds(prefill: float, one: float, trace: Sequence[Step], v: WidthCurve = None, c: float = 0.0) -> float:
    """Seconds of a request whose prompt takes `prefill` and whose steps behind it are those of the trace.

    one: seconds of a one-row forward; v, c: as in `measure.speculation`. Errors as `predicted_cost`.
    """
    return prefill + one * predicted_cost(after_prefill(trace), v, c)


def counts(trace: Sequence[Step]) -> list[tuple[int, int, int]]:
    """(tokens fed, accepted, committed) of each step: what a replay and the run that it stands for share."""
    return [(step.forwarded, step.accepted, step.committed) for step in trace]
