"""Counting without a model (lesson 07): what a proposer saves on a text that is written already.

Greedy text does not depend on the proposer. A recorded one therefore answers for every setting of a proposer that
looks at token ids alone: no forward is run, and a replay takes milliseconds.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from lessons_lib.decoding.proposal import ANCHOR, Tree
from lessons_lib.decoding.proposers import Observation, Proposer
from lessons_lib.decoding.trace import Step
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

    For proposers that ask nothing of a target but its `eos`, and nothing of an observation but path and tokens.
    """
    text, at = [*recording.prompt, *recording.new], len(recording.prompt)
    end = at + (recording.max_new_tokens or len(recording.new))
    proposer.reset(recording, list(recording.prompt))
    proposer.observe(_seen([], [text[at]]))
    trace = [Step(length_before=at, forwarded=at, committed=1, is_prefill=True)]
    at += 1
    while at < len(text):
        limit = end - at - 1  # the step adds one token itself
        tree = Tree.of(proposer.propose(text[:at], limit), limit)
        path = follow(tree, text[at:])
        committed = min(len(path) + 1, len(text) - at)
        proposer.observe(_seen([tree.merged.index(node) for node in path], text[at : at + committed]))
        depth = max(tree.depths, default=0)
        trace.append(Step(at, 1 + len(tree.tokens), len(tree.tokens), depth, 0, len(path), committed))
        at += committed
    return trace


def follow(tree: Tree, text: Sequence[int]) -> list[int]:
    """The nodes of the longest path from the root that the text takes."""
    path, node = [], ANCHOR
    for token in text:
        if (node := tree.child(node, token)) is None:
            break
        path.append(node)
    return path


def foretold_speed(trace: Sequence[Step], v: WidthCurve = None) -> float:
    """Speed over plain decoding, prefill left out: tokens over the sum of v(rows fed), the guesses being free.

    v: as in `measure.speculation`. nan for a trace of the prefill alone.
    """
    v, steps = width_cost(v), [step for step in trace if not step.is_prefill]
    return sum(step.committed for step in steps) / sum(v(step.forwarded) for step in steps) if steps else float("nan")


def _seen(path: list[int], tokens: list[int]) -> Observation:
    """What a step would bring to light, as far as it needs no logits."""
    return Observation(path, tokens, None, {}, None)
