"""Predicting a run without running it (lessons 06, 07, 11): a recorded text replayed, and a ladder of configurations.

Greedy text does not depend on the proposer. A recorded one therefore answers for every setting of a proposer that
looks at token ids alone: no forward pass is run, and a replay takes milliseconds. What the steps cost says a StepCost.

On the ladder, a rung changes one thing of the rung below it. Its price follows from bytes, a rate, and what wider steps
cost; its trace is counted and asks no clock. So it is predicted by what was learned about its parts: it may be timed
afterwards, and be wrong.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from lessons_lib.decoding.draft_tree import ROOT, DraftTree
from lessons_lib.decoding.generate import StepStats
from lessons_lib.decoding.proposers import Proposer
from lessons_lib.decoding.proposers.draft_length import DraftLength
from lessons_lib.measure.cost import StepCost

TOLERATED = 0.01  # of perplexity: a rung that gives away more is shown but does not count


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


def replay(recording: Recording, proposer: Proposer) -> list[StepStats]:
    """The trace that `generate` would have with this proposer, prefill first, without times.

    For proposers that ask nothing of a target but its `eos`, and nothing of the model output; AttributeError or
    TypeError for others. ValueError for what the proposer refuses.
    """
    text, at = [*recording.prompt, *recording.new], len(recording.prompt)
    end = at + (recording.max_new_tokens or len(recording.new))
    proposer.reset(recording, list(recording.prompt))
    proposer.observe(DraftTree(), [], [text[at]], None)
    stats = [StepStats(length_before=at, num_input_tokens=at, committed=1, is_prefill=True)]
    at += 1
    while at < len(text):
        tree = DraftTree(max_depth=end - at - 1)  # the step adds one token itself
        proposer.propose(text[:at], tree)
        path = follow(tree, text[at:])
        committed = min(len(path) + 1, len(text) - at)
        proposer.observe(tree, path, text[at : at + committed], None)
        stats.append(StepStats(at, 1 + len(tree.tokens), len(tree.tokens), tree.depth, 0, len(path), committed))
        at += committed
    return stats


def follow(tree: DraftTree, text: Sequence[int]) -> list[int]:
    """The nodes of the longest path from the root that the text, the ids after it, takes."""
    path, node = [], ROOT
    for token in text:
        if (node := tree.child(node, token)) is None:
            break
        path.append(node)
    return path


def replay_draft(right: Sequence[bool], length: DraftLength) -> list[StepStats]:
    """The trace, without the prefill, of a draft model that guesses one chain as deep as `length` says.

    right: for every token behind the first, whether the draft guesses it, having read all tokens before it: a
    greedy draft has read the very text, or it would have been rejected. For schedules that ask for no confidence,
    and texts that end because they are long enough.
    """
    length.reset()
    stats, at = [], 0
    while at < len(right):
        guesses = right[at : at + min(length.next(), len(right) - at - 1)]  # the step adds one token itself
        gamma, accepted = len(guesses), first_wrong(guesses)
        if gamma:
            length.observe(gamma, min(accepted + 1, gamma), accepted)
        stats.append(StepStats(at, 1 + gamma, gamma, gamma, 0, accepted, accepted + 1, draft_calls=gamma))
        at += accepted + 1
    return stats


def first_wrong(guesses: Sequence[bool]) -> int:
    """How many guesses stand before the first wrong one: [True, False, True] -> 1."""
    return next((count for count, guess in enumerate(guesses) if not guess), len(guesses))


def counts(stats: Sequence[StepStats]) -> list[tuple[int, int, int]]:
    """(tokens fed, accepted, committed) of each step: what a replay and the run that it stands for share."""
    return [(step.num_input_tokens, step.accepted, step.committed) for step in stats]


@dataclass(frozen=True)
class Configuration:
    """One way to decode. below: the rung that it changes (None: the first)."""

    name: str
    below: str | None
    cost: StepCost


def standing(configs: Sequence[Configuration]) -> None:
    """ValueError for a name that comes twice, and for a rung whose lower one does not stand before it."""
    seen: set[str] = set()
    for config in configs:
        if config.name in seen:
            raise ValueError(f"two rungs are called {config.name!r}; give each a name of its own")
        if config.below is not None and config.below not in seen:
            raise ValueError(f"{config.name!r} stands on {config.below!r}, which is not below it; put that rung first")
        seen.add(config.name)


def way_to(configs: Sequence[Configuration], top: str) -> list[Configuration]:
    """The rungs from the first one up to `top`. ValueError if there is none of that name, KeyError for a gap."""
    named, way = {config.name: config for config in configs}, []
    if top not in named:
        raise ValueError(f"there is no rung {top!r}; choose one of: {', '.join(named)}")
    while top is not None:
        way.append(named[top])
        top = named[top].below
    return way[::-1]


def step_gains(configs: Sequence[Configuration], speeds: Mapping[str, float]) -> dict[str, float]:
    """Each rung's speed over that of the rung below it; the first one's is 1. Along a way they multiply to its whole.

    Rungs without a speed were not measured and are left out, and so are those that stand on one of them.
    """
    known = [config for config in configs if config.name in speeds and (config.below is None or config.below in speeds)]
    return {config.name: speeds[config.name] / speeds[config.below] if config.below else 1.0 for config in known}


def counting(perplexities: Mapping[str, float], reference: float) -> set[str]:
    """Names of the rungs whose perplexity is at most TOLERATED above the reference's, relative."""
    return {name for name, value in perplexities.items() if value <= reference * (1 + TOLERATED)}


def best(speeds: Mapping[str, float], allowed: Collection[str]) -> str:
    """The fastest rung of those allowed. ValueError if none of them was measured."""
    if not (known := [name for name in speeds if name in allowed]):
        raise ValueError("none of the rungs that count was measured; measure one of: " + ", ".join(sorted(allowed)))
    return max(known, key=speeds.__getitem__)
