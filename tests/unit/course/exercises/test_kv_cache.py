"""Exercises of the KV cache: each plausible mistake fails, and says how."""

import torch


def wrong_turn(forward, cache, ids, turn, n):
    tokens, ids = turn, ids + turn
    for _ in range(n):
        tokens = [int(forward(tokens, cache).argmax())]
        ids = ids + tokens
    return ids


def test_a_next_turn_that_forgets_the_newest_token_fails(checked):
    assert "not yet. next_turn" in checked("02.1", named(wrong_turn, "next_turn"))


def test_a_next_turn_that_computes_the_conversation_again_fails(checked):
    def next_turn(forward, cache, ids, turn, n):
        ids = ids + turn
        cache.keep(0)
        tokens = ids
        for _ in range(n):
            tokens = [int(forward(tokens, cache).argmax())]
            ids = ids + tokens
        return ids

    assert "were computed where 8 are enough" in checked("02.1", next_turn)


def test_repeating_shared_heads_is_refused_and_named(checked):
    def attend_grouped(q, keys, values):
        keys, values = (x.repeat_interleave(len(q) // len(keys), 0) for x in (keys, values))
        return (q @ keys.transpose(1, 2)).softmax(-1) @ values

    assert "repeat_interleave is not allowed" in checked("02.2", attend_grouped)


def test_copies_of_shared_heads_are_refused_however_they_are_made(checked):
    def attend_grouped(q, keys, values):
        shared, new, entries = len(q) // len(keys), q.shape[1], keys.shape[1]
        keys, values = (x[:, None].expand(-1, shared, -1, -1).reshape(len(q), entries, -1) for x in (keys, values))
        future = torch.ones(new, entries, dtype=torch.bool).triu(entries - new + 1)
        scores = q @ keys.transpose(1, 2) / q.shape[-1] ** 0.5
        return scores.masked_fill(future, -torch.inf).softmax(-1) @ values

    assert "are copied for every query head" in checked("02.2", attend_grouped)


def test_grouped_attention_without_a_mask_fails(checked):
    def attend_grouped(q, keys, values):
        rows = q.reshape(len(keys), -1, q.shape[-1])
        weights = (rows @ keys.transpose(1, 2) / q.shape[-1] ** 0.5).softmax(-1)
        return (weights @ values).view(q.shape)

    assert "attend_grouped" in checked("02.2", attend_grouped)


def test_a_window_that_repeats_the_sinks_fails(checked):
    def append_and_forget(keys, new, sinks, window):
        keys = torch.cat([keys, new], dim=1)
        return torch.cat([keys[:, :sinks], keys[:, -window:]], dim=1)

    assert "1, 20) gave" in checked("02.3", append_and_forget)


def test_a_cache_may_rely_on_no_more_new_tokens_than_the_window(checked):
    def append_and_forget(keys, new, sinks, window):
        start = max(sinks, keys.shape[1] + new.shape[1] - window)
        return torch.cat([keys[:, :sinks], keys[:, start:], new], dim=1)

    assert checked("02.3", append_and_forget) == "02.3: passed\n"


def test_requests_need_the_window_and_the_context(checked):
    def requests(config, weight_bytes, memory, tokens):
        each = 4 * tokens * config.num_layers * config.num_kv_heads * config.head_dim
        return max(0, int((memory - weight_bytes) // each))

    assert "mistral-7b-v0.1" in checked("02.4", requests)

    def without_context(config, weight_bytes, memory, tokens):
        each = 4 * min(tokens, config.sliding_window or tokens)
        each *= config.num_layers * config.num_kv_heads * config.head_dim
        return max(0, int((memory - weight_bytes) // each))

    assert "llama-2-7b" in checked("02.4", without_context)


def named(function, name):
    function.__name__ = name
    return function
