"""The exact distribution of anything random: every way in which its samples can fall, with its probability."""

import math
from collections import defaultdict
from functools import cache
from itertools import product
from unittest import mock

import pytest
import torch
from support.toys import ToyTarget

from lessons_lib import Sampling, generate
from lessons_lib.decoding import sampling


def exact_distribution(run) -> dict:
    """outcome -> probability, over every way in which the random draws of `run()` can fall."""
    distribution, scripts = defaultdict(float), [[]]
    while scripts:
        replay = Replay(scripts.pop(), scripts)
        with (
            mock.patch.object(torch, "multinomial", replay.multinomial),
            mock.patch.object(sampling, "_uniform", lambda p, generator, replay=replay: Coin(replay)),
        ):
            outcome = run()
        distribution[outcome] += replay.weight
    return distribution


def correction_from_p(p, children, q, mode, generator):
    """Wrong on purpose: after a rejection it draws from p, in which the rejected token is still there."""
    for token in children:
        if sampling._uniform(p, generator) * (1.0 if mode == "unsampled" else q[token]) < p[token]:
            return token, True
    return int(torch.multinomial(p, 1, generator=generator)), False


class Replay:
    """Answers draws as the script says; at the first one beyond it, notes the other answers for later runs."""

    def __init__(self, script: list[int], scripts: list[list[int]]):
        self.script, self.scripts, self.taken, self.weight = script, scripts, [], 1.0

    def choose(self, chances: list[float]) -> int:
        at = len(self.taken)
        if at < len(self.script):
            pick = self.script[at]
        else:
            pick, *others = [i for i, chance in enumerate(chances) if chance > 0]
            self.scripts += [[*self.taken, other] for other in others]
        self.taken.append(pick)
        self.weight *= chances[pick]
        return pick

    def multinomial(self, q, count, replacement=False, generator=None):
        samples, rest = [], q.clone()
        for _ in range(count):
            samples.append(self.choose((rest / rest.sum()).tolist()))
            if not replacement:
                rest[samples[-1]] = 0
        return torch.tensor(samples)


class Coin:
    """The uniform number u, as far as u * q < p asks about it."""

    def __init__(self, replay, q=1.0):
        self.replay, self.q = replay, q

    def __mul__(self, q):
        return Coin(self.replay, float(q))

    def __lt__(self, p):
        chance = min(1.0, float(p) / self.q) if self.q > 0 else float(p > 0)
        return bool(self.replay.choose([1 - chance, chance]))


def distribution_of(target, proposer, count: int, rule=None) -> dict:
    """The exact distribution of the texts of `count` tokens that the proposer helps to write after token 0."""
    return exact_distribution(lambda: tuple(generate(target, [0], proposer, rule or Sampling(), count).ids))


def seeded(seed: int) -> torch.Generator:
    """Dice that fall the same way every time."""
    return torch.Generator().manual_seed(seed)


def random_distribution(size: int, seed: int, toy: type[ToyTarget] = ToyTarget) -> ToyTarget:
    """A toy that has another distribution after every prefix."""

    @cache
    def logits(prefix):
        return torch.randn(size, generator=seeded(hash((seed, prefix)) % 2**31), dtype=torch.float64)

    return toy(logits, size)


def far_from(distribution: dict, target, count: int) -> float:
    """The largest error of a probability."""
    assert sum(distribution.values()) == pytest.approx(1)
    worst = 0.0
    for text in product(range(target.vocab_size), repeat=count):
        rows = [target.logits((0, *text[:i])).softmax(-1) for i in range(count)]
        worst = max(
            worst, abs(distribution.get(text, 0) - math.prod(float(p[t]) for p, t in zip(rows, text, strict=True)))
        )
    return worst
