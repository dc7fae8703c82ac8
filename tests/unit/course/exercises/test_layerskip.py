"""Plausible wrong attempts at the exercises on LayerSkip fail, and the message says why."""

import pytest
import torch

from lessons_lib.course.exercises.layerskip import GAMMA, written
from lessons_lib.models import Segment


def without_the_doubted_token(root, gamma, threshold, early, head):
    states, tokens = [early(root)], []
    while len(tokens) < gamma and head(states[-1])[1] >= threshold:
        tokens.append(head(states[-1])[0])
        states.append(early(tokens[-1]))
    return tokens, states


def without_the_last_state(root, gamma, threshold, early, head):
    states, tokens, token = [], [], root
    for _ in range(gamma):
        states.append(early(token))
        token, sure = head(states[-1])
        tokens.append(token)
        if sure < threshold:
            break
    return tokens, states


def places_instead_of_ids(weight, vocabulary):
    rows = weight[vocabulary]
    return lambda state: (rows @ state).argmax()


def whole_head(weight, vocabulary):
    return lambda state: (weight @ state).argmax()


def rows_again_for_every_token(weight, vocabulary):
    return lambda state: vocabulary[(weight[vocabulary] @ state).argmax()]


def positions_of_the_first_layer(decoder, layers, x, cache, ahead=0):
    start = cache.length() - ahead
    positions = torch.arange(start, start + len(x))
    cos, sin = decoder.cos[positions][:, None], decoder.sin[positions][:, None]
    for i in layers:
        x = decoder.layers[i](x, cos, sin, [Segment(positions, cache)])
    return x


def exact(decoder, layers, x, cache):
    return positions_of_the_first_layer(decoder, layers, x, cache, len(x) if layers[0] else 0)


def always_behind(decoder, layers, x, cache):
    return positions_of_the_first_layer(decoder, layers, x, cache, len(x))


def states_after_the_norm(decoder, layers, x, cache):
    return decoder.final(exact(decoder, layers, x, cache))


def with_a_free_head(config, exit_layer, gamma, acceptance):
    return (1 + gamma * acceptance) / (gamma * exit_layer / config.num_layers + 1)


def without_the_bonus_token(config, exit_layer, gamma, acceptance):
    layer, head = config.layer_weights / config.num_layers, config.head_weights
    whole = config.layer_weights + head
    return gamma * acceptance * whole / (gamma * (exit_layer * layer + head) + whole)


@pytest.mark.parametrize(("name", "attempt", "why"), [
    ("13.1", without_the_doubted_token, "(4, 0.4) gave (['name', 'FROM'], "),
    ("13.1", without_the_last_state, "(4, 0.4) gave (['name', 'FROM', 'players'], "),
    ("13.2", places_instead_of_ids, "[31, 4, 18, 7, 25]"),
    ("13.2", whole_head, "expected ["),
    ("13.2", rows_again_for_every_token, "copy the rows once"),
    ("13.3", positions_of_the_first_layer, "= (0) gave ["),
    ("13.3", always_behind, "= (0) "),
    ("13.3", states_after_the_norm, "= (0) gave ["),
    ("13.4", with_a_free_head, "gave "),
    ("13.4", without_the_bonus_token, "gave "),
])  # fmt: skip
def test_a_plausible_wrong_attempt_fails(name, attempt, why, checked):
    said = checked(name, attempt)
    assert said.startswith(f"{name}: not yet") and why in said


def test_the_loop_of_the_bug_accepts_some_draft_tokens_and_rejects_others():
    calls = []

    def run(decoder, layers, x, cache):
        calls.append(layers)
        return exact(decoder, layers, x, cache)

    right = written(run, GAMMA)
    rounds = sum(layers == range(3, 4) for layers in calls)
    assert len(right) / (GAMMA + 1) < rounds < len(right)


def test_the_bug_shows_only_after_the_first_token():
    wrong, right = (written(run, GAMMA) for run in (positions_of_the_first_layer, exact))
    assert wrong[0] == right[0] and wrong != right
