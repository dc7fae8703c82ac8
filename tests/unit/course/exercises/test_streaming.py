"""Exercises of StreamingLLM: each plausible mistake fails, and says where."""

import torch

from lessons_lib.attention.rotary import rotate


def evicted(sinks_too=False, forward=False, total=False):
    """An attempt at 16.1 with mistakes to switch on."""
    turned = []

    def evict_rotated(keys, sinks, window, cos, sin):
        e = keys.shape[1] - sinks - window
        if e <= 0:
            return keys
        turned.append(e)
        by = sum(turned) if total else e
        moved = rotate(keys[:, sinks + e :], cos[by], sin[by] if forward else -sin[by])
        first = keys[:, :sinks]
        return torch.cat([rotate(first, cos[e], -sin[e]) if sinks_too else first, moved], dim=1)

    return evict_rotated


def test_moved_keys_are_turned_back_once_and_the_sinks_never(checked):
    assert checked("16.1", evicted()) == "16.1: passed\n"
    for mistake in ("sinks_too", "forward", "total"):
        assert "not yet. evict_rotated" in checked("16.1", evicted(**{mistake: True})), mistake


def test_room_for_a_chunk_that_fills_the_window_needs_care(checked):
    def make_room(held, m, sinks, window):
        return held[:sinks] + held[sinks:][-(window - m) :]  # [-0:] is everything

    assert "[0, 1, 5, 6, 7], 3, 2, 3) gave [0, 1, 5, 6, 7]" in checked("16.2", make_room)


def test_room_is_made_only_where_it_is_needed(checked):
    def make_room(held, m, sinks, window):
        return held[:sinks] + held[sinks + m :]

    assert "16.2: not yet" in checked("16.2", make_room)


def test_an_exit_whose_share_is_given_back_fails(checked):
    def attend_with_exit(q, keys, values, exit):
        scores = torch.cat([q @ keys.transpose(1, 2) / q.shape[-1] ** 0.5, exit[:, None, None]], dim=-1)
        weights = scores.softmax(-1)[..., :-1]
        return weights / weights.sum(-1, keepdim=True) @ values

    assert "16.3: not yet" in checked("16.3", attend_with_exit)


def test_the_weights_are_read_once_for_a_whole_batch(checked):
    def twice(config, capacity, batch):
        return 2 * capacity + config.weights / (2 * config.num_layers * config.num_kv_heads * config.head_dim)

    assert ", 1024, 16) gave 2" in checked("16.4", twice)
