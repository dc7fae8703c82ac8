"""Predicting a run without running it (lessons 06, 07, 11): replaying a recorded text, and a ladder of configurations.

Greedy text does not depend on the proposer. So one recorded text is enough to count the steps of every setting of a
proposer that uses only token ids: no forward pass is run, and a replay takes milliseconds. A StepCost turns the steps
into seconds.

On the ladder, each configuration changes one thing of the configuration below it. The prediction of its speed uses the
cost of a step (bytes, bandwidth, width curve) and the counted steps of a replay, but no timing of the configuration
itself. It can be compared with a measurement afterwards.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from lessons_lib.decoding.draft_tree import ROOT, DraftTree
from lessons_lib.decoding.generate import StepStats
from lessons_lib.decoding.proposers import Proposer
from lessons_lib.decoding.proposers.draft_length import Constant, DraftLength
from lessons_lib.measure.cost import StepCost

TOLERATED = 0.01  # relative increase in perplexity above which a configuration is shown but does not count


@dataclass(frozen=True)
class Recording:
    """Token ids of a prompt and of the greedy text generated after it.

    eos: ids of the end tokens. max_new_tokens: limit of the recorded run (None: the length of the text).
    """

    prompt: Sequence[int]
    new: Sequence[int]
    eos: tuple[int, ...] = ()
    max_new_tokens: int | None = None

    def __post_init__(self):
        if not len(self.prompt) or not len(self.new):
            raise ValueError("a recording needs a prompt and a text of at least one token each")


def replay(recording: Recording, proposer: Proposer) -> list[StepStats]:
    """The stats that `generate` would return with this proposer, prefill first, without times.

    Only for proposers that use the token ids and the target's `eos`, and not the model output.
    """
    # prefill: one step that commits the first token
    text, at = [*recording.prompt, *recording.new], len(recording.prompt)
    end = at + (recording.max_new_tokens or len(recording.new))
    proposer.reset(recording, list(recording.prompt))
    proposer.observe(DraftTree(), [], [text[at]], None)
    stats = [StepStats(length_before=at, num_input_tokens=at, committed=1, is_prefill=True)]
    # every step commits the draft tokens that match the recorded text, and one more
    at += 1
    while at < len(text):
        tree = DraftTree(max_depth=end - at - 1)  # the step itself adds one token
        proposer.propose(text[:at], tree)
        path = follow(tree, text[at:])
        committed = min(len(path) + 1, len(text) - at)
        proposer.observe(tree, path, text[at : at + committed], None)
        stats.append(StepStats(at, 1 + len(tree.tokens), len(tree.tokens), tree.depth, len(path), committed))
        at += committed
    return stats


def follow(tree: DraftTree, text: Sequence[int]) -> list[int]:
    """The nodes of the longest path below the root whose tokens match the text, the ids after the root."""
    path, node = [], ROOT
    for token in text:
        if (node := tree.child(node, token)) is None:
            break
        path.append(node)
    return path


def replay_draft(right: Sequence[bool], length: DraftLength, eos: bool = False) -> list[StepStats]:
    """Stats, without prefill, of a draft model that drafts chains with the schedule `length`.

    right: for every token after the first, whether the draft model predicts it from the true tokens before it. That is
    enough for a greedy draft: tokens drafted after a wrong one are rejected anyway. For schedules that do not use the
    draft model's confidence. eos: whether the last token is an end token, which may be drafted like any other; without
    one the text ends at its maximum length, and a draft leaves room for the step's own token.
    """
    length.reset()
    stats, at = [], 0
    while at < len(right):
        left = len(right) - at
        drafted = right[at : at + min(length.next(), left if eos else left - 1)]
        gamma, accepted = len(drafted), [*drafted, False].index(False)  # accepted up to the first wrong one
        if gamma:
            length.observe(gamma, min(accepted + 1, gamma), accepted)
        committed = min(accepted + 1, left)  # nothing follows an accepted end token
        stats.append(StepStats(at, 1 + gamma, gamma, gamma, accepted, committed, draft_calls=gamma))
        at += committed
    return stats


def best_exit(
    right: Mapping[int, Sequence[Sequence[bool]]], costs: Mapping[int, StepCost], most: int = 8
) -> tuple[int, int]:
    """The exit layer and the number of draft tokens, 1 to `most`, that are predicted to be fastest on recorded texts.

    right: for each exit layer and text, whether the exit predicts each token after the first, as in `replay_draft`.
    costs: of each exit, in one-token passes of the target (`cost.early_exit_cost`).
    """

    def speed(pair: tuple[int, int]) -> float:
        exit_layer, gamma = pair
        return replayed_speed(right[exit_layer], gamma, costs[exit_layer])

    return max(product(right, range(1, most + 1)), key=speed)


def replayed_speed(right: Sequence[Sequence[bool]], gamma: int, cost: StepCost) -> float:
    """Speedup over plain decoding with gamma draft tokens on recorded texts. right: of each text, as in `replay_draft`.

    Each draft is priced at its length: one that ends with its text costs less. cost: in one-token passes.
    """
    return cost.speed(*(replay_draft(text, Constant(gamma)) for text in right))


def counts(stats: Sequence[StepStats]) -> list[tuple[int, int, int]]:
    """(tokens fed, accepted, committed) of each step. A replay and the real run must agree in them."""
    return [(step.num_input_tokens, step.accepted, step.committed) for step in stats]


@dataclass(frozen=True)
class Configuration:
    """One configuration for decoding. below: name of the configuration that it changes (None: it is the first)."""

    name: str
    below: str | None
    cost: StepCost


def check_order(configs: Sequence[Configuration]) -> None:
    """Raise ValueError unless all names differ and every configuration comes after the one that it changes."""
    seen: set[str] = set()
    for config in configs:
        if config.name in seen:
            raise ValueError(f"two configurations are called {config.name!r}; give each a name of its own")
        if config.below is not None and config.below not in seen:
            raise ValueError(f"{config.name!r} stands on {config.below!r}, which is not below it; put that one first")
        seen.add(config.name)


def way_to(configs: Sequence[Configuration], top: str) -> list[Configuration]:
    """The configurations from the first one up to `top`, each changing the one before it."""
    named, way = {config.name: config for config in configs}, []
    if top not in named:
        raise ValueError(f"there is no configuration {top!r}; choose one of: {', '.join(named)}")
    while top is not None:
        way.append(named[top])
        top = named[top].below
    return way[::-1]


def step_gains(configs: Sequence[Configuration], speeds: Mapping[str, float]) -> dict[str, float]:
    """Speed of each configuration relative to the one below it; 1 for the first.

    Along `way_to` the gains multiply to the total. Configurations without a measured speed are left out, and so are
    those directly above them.
    """
    known = [config for config in configs if config.name in speeds and (config.below is None or config.below in speeds)]
    return {config.name: speeds[config.name] / speeds[config.below] if config.below else 1.0 for config in known}


def counting(perplexities: Mapping[str, float], reference: float) -> set[str]:
    """Names of the configurations whose perplexity exceeds the reference by at most the fraction TOLERATED."""
    return {name for name, value in perplexities.items() if value <= reference * (1 + TOLERATED)}


def best(speeds: Mapping[str, float], allowed: Collection[str]) -> str:
    """Name of the fastest allowed configuration. ValueError if none of them was measured."""
    if not (known := [name for name in speeds if name in allowed]):
        raise ValueError(
            "none of the configurations that count was measured; measure one of: " + ", ".join(sorted(allowed))
        )
    return max(known, key=speeds.__getitem__)
