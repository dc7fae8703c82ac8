"""Checkers: a draft that stops when in doubt, a short LM head, positions of late layers, and LayerSkip's speedup."""

import torch

from lessons_lib.course.exercises import Attempt, Wrong, exercise, expect
from lessons_lib.course.exercises.kv_cache import decoded
from lessons_lib.measure.config import CONFIGS
from lessons_lib.models import Decoder, tiny

CHAIN = {"SELECT": ("name", 0.9), "name": ("FROM", 0.8), "FROM": ("players", 0.3), "players": ("WHERE", 0.7)}
PROMPT, EXIT, GAMMA, NEW = [5, 80, 3, 3, 41], 3, 3, 16


@exercise("13.1")
def draft_until_doubt(attempt: Attempt) -> None:
    """The doubted token is the last one; every token's exit state is there, also the last one's."""
    early, head = (lambda token: f"state of {token}"), (lambda state: CHAIN[state.removeprefix("state of ")])
    early.__name__, head.__name__ = "early", "head"

    def run(gamma: int, threshold: float):
        return attempt("SELECT", gamma, threshold, early, head)

    run.__name__ = "draft for root 'SELECT', gamma and threshold"
    for gamma, threshold, tokens in [
        (4, 0.4, ["name", "FROM", "players"]),
        (4, 0.0, ["name", "FROM", "players", "WHERE"]),
        (2, 0.4, ["name", "FROM"]),
        (4, 0.85, ["name", "FROM"]),
        (0, 0.4, []),
    ]:
        expect(run, gamma, threshold, equals=(tokens, [f"state of {token}" for token in ["SELECT", *tokens]]))


@exercise("13.2")
def short_head(attempt: Attempt) -> None:
    """The best token of the vocabulary, by its own id; the head's rows are copied once."""
    generator = torch.Generator().manual_seed(0)
    weight, states = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((40, 8), (30, 8)))
    for vocabulary in (torch.arange(10), torch.tensor([31, 4, 18, 7, 25]), torch.tensor([12])):
        wanted = [int(vocabulary[(weight[vocabulary] @ state).argmax()]) for state in states]

        def drafted(vocabulary: torch.Tensor) -> list[int]:
            draft_token = attempt(weight.clone(), vocabulary)
            return [int(draft_token(state)) for state in states]

        drafted.__name__ = "tokens drafted for 30 states with vocabulary "
        expect(drafted, vocabulary, equals=wanted)
        gone = weight.clone()
        draft_token = attempt(gone, vocabulary)
        gone.zero_()
        if [int(draft_token(state)) for state in states] != wanted:
            raise Wrong("it reads `weight` again for every draft token: copy the rows once, before the first one.")


class LayerCache:
    """The lesson's cache, keys and values (H_kv, S, d) of every layer, but with one length: that of layer 0."""

    def __init__(self):
        self.keys, self.values = {}, {}

    def length(self) -> int:
        return self.keys[0].shape[1] if self.keys else 0

    def append(self, layer: int, keys: torch.Tensor, values: torch.Tensor):
        if layer in self.keys:
            keys = torch.cat([self.keys[layer], keys], dim=1)
            values = torch.cat([self.values[layer], values], dim=1)
        self.keys[layer], self.values[layer] = keys, values
        return keys, values

    def truncate(self, length: int) -> None:
        for layer in self.keys:
            self.keys[layer], self.values[layer] = self.keys[layer][:, :length], self.values[layer][:, :length]


@torch.no_grad()
def written(run: Attempt, gamma: int) -> list[int]:
    """NEW tokens of the lesson's loop on a tiny random model, with this `run`."""
    decoder, cache, tokens = Decoder.from_transformers(tiny(4)), LayerCache(), [*PROMPT]
    early, late = range(EXIT), range(EXIT, 4)
    while len(tokens) < len(PROMPT) + NEW:
        states, draft = [run(decoder, early, decoder.embedding(torch.tensor(tokens[cache.length() :])), cache)], []
        while len(draft) < gamma:
            draft.append(int(decoder.logits(states[-1][-1:]).argmax()))
            states.append(run(decoder, early, decoder.embedding(torch.tensor(draft[-1:])), cache))
        last = run(decoder, late, torch.cat(states), cache)[-len(draft) - 1 :]
        choice = decoder.logits(last).argmax(-1).tolist()
        accepted = next((i for i, token in enumerate(draft) if token != choice[i]), len(draft))
        tokens += choice[: accepted + 1]
        cache.truncate(len(tokens) - 1)
    return tokens[len(PROMPT) : len(PROMPT) + NEW]


@exercise("13.3")
def positions_of_the_late_layers(attempt: Attempt) -> None:
    """The loop with this `run` writes what plain decoding writes."""
    plain = decoded(Decoder.from_transformers(tiny(4)), PROMPT, NEW)

    def tokens(gamma: int) -> list[int]:
        return written(attempt, gamma)

    tokens.__name__ = "tokens of the loop with draft tokens per round = "
    for gamma in (0, 1, GAMMA):
        expect(tokens, gamma, equals=plain[len(PROMPT) :])


@exercise("13.4")
def speedup(attempt: Attempt) -> None:
    """A round reads the early layers and the head for each draft token, then all layers and the head once."""
    for name, settings in {
        "llama-2-7b": [(8, 12, 0.689), (8, 12, 0.546), (8, 6, 0.671)],
        "smollm2-135m": [(6, 4, 0.7), (10, 4, 0.85), (6, 1, 0.0)],
    }.items():
        config = CONFIGS[name]
        for exit_layer, gamma, acceptance in settings:
            layer, head = config.layer_weights / config.num_layers, config.head_weights
            whole = config.num_layers * layer + head
            gained = (1 + gamma * acceptance) * whole / (gamma * (exit_layer * layer + head) + whole)
            expect(attempt, config, exit_layer, gamma, acceptance, equals=gained, tolerance=1e-3)
