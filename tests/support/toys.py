"""Toy targets: a rule from a prefix to logits, seen through the blocks' own masks and positions."""

import random
from collections.abc import Callable

import torch
from torch import Tensor, nn

from lessons_lib.caches.cache import Cache
from lessons_lib.decoding.draft_tree import ModelInput, ModelOutput
from lessons_lib.decoding.targets import Target


class ToyCache(Cache):
    """Remembers tokens and positions instead of keys and values."""

    def __init__(self):
        self.entries: list[tuple[int, int]] = []  # position, token

    def length(self, layer=-1) -> int:
        return len(self.entries)

    def keep(self, prefix, then=()) -> None:
        assert prefix + len(then) <= len(self.entries)
        self.entries = self.entries[:prefix] + [self.entries[i] for i in then]


class ToyTarget(Target):
    """logits: prefix (token ids) -> (V,). A token that does not see exactly one token at every position up to
    its own is an error: no model could make sense of it."""

    context = 10**6

    def __init__(self, logits: Callable[[tuple[int, ...]], torch.Tensor], vocab_size: int, eos=()):
        self.logits, self.vocab_size, self.eos = logits, vocab_size, eos

    def new_cache(self, tokens: int) -> ToyCache:
        return ToyCache()

    def run(self, inputs: list[ModelInput]) -> list[ModelOutput]:
        return [self._run(model_input) for model_input in inputs]

    def _run(self, model_input: ModelInput) -> ModelOutput:
        start, count = model_input.cache.length(), len(model_input.tokens)
        entries = model_input.cache.entries + list(
            zip(model_input.cache.positions(model_input.offsets), model_input.tokens, strict=True)
        )
        model_input.cache.entries = entries
        rows = range(count - model_input.wanted, count)
        mask = model_input.mask.tolist() if model_input.mask is not None else None
        seen = [[e for e, ok in zip(entries, mask[i], strict=True) if ok] if mask else entries[: start + i + 1]
                for i in rows]  # fmt: skip
        for i, prefix in zip(rows, seen, strict=True):
            assert sorted(position for position, _ in prefix) == list(range(entries[start + i][0] + 1))
        return ModelOutput(torch.stack([self.logits(tuple(t for _, t in sorted(prefix))) for prefix in seen]))


def choosing(choice: Callable[[tuple[int, ...]], int], vocab_size: int, eos=()) -> ToyTarget:
    """A target whose most probable next token is choice(prefix)."""
    table = torch.eye(vocab_size, dtype=torch.float64)
    return ToyTarget(lambda prefix: table[choice(prefix)], vocab_size, eos)


def whimsical(seed: int, vocab_size: int, memory: int = 10**6) -> ToyTarget:
    """A random choice for each different prefix (or its last `memory` tokens)."""
    return choosing(lambda prefix: random.Random(f"{seed} {prefix[-memory:]}").randrange(vocab_size), vocab_size)


def continued(target: ToyTarget, prompt, count: int) -> list[int]:
    """The greedy text, token by token from the rule itself."""
    text = list(prompt)
    for _ in range(count):
        text.append(int(target.logits(tuple(text)).argmax()))
        if text[-1] in target.eos:
            break
    return text[len(prompt) :]


def constant(p) -> ToyTarget:
    """The same distribution p (V,) after any text."""
    return ToyTarget(lambda prefix: torch.tensor(p, dtype=torch.float64).log(), len(p))


def linear_of(weight: Tensor) -> nn.Sequential:
    """A network of nothing but a linear layer with a copy of this weight (N, K), as libraries quantize it."""
    network = nn.Sequential(nn.Linear(*weight.T.shape, bias=False))
    network[0].weight = nn.Parameter(weight.clone(), requires_grad=False)
    return network
