"""Settings that cannot work, and requests that could never run (lesson 05): said at once, not waited for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lessons_lib.caches.sizes import cached_tokens
from lessons_lib.serving.request import Request

if TYPE_CHECKING:
    from lessons_lib.serving.scheduler import Scheduler


def check_settings(scheduler: Scheduler) -> None:
    """ValueError, saying what to do, for settings that cannot work."""
    if scheduler.slots < 1:
        raise ValueError(f"A scheduler needs at least one slot, not {scheduler.slots}.")
    if scheduler.reserve not in ("none", "max", "oracle"):
        raise ValueError(f"reserve is 'none', 'max' or 'oracle', not {scheduler.reserve!r}.")
    if scheduler.guesses < 0 or not 0 <= scheduler.watermark < 1:
        raise ValueError("guesses is at least 0 and watermark a part of the pool from 0 to below 1.")
    budget, decoding = scheduler.token_budget, scheduler.slots * (1 + scheduler.guesses)
    if budget is not None and budget < decoding:
        raise ValueError(f"token_budget must cover {decoding} tokens, one step of all slots, not {budget}.")
    if scheduler.chunked and (budget is None or not scheduler.mixed):
        raise ValueError("chunked=True needs a token_budget, and mixed=True: parts of prompts run beside decoding.")


def impossible(scheduler: Scheduler, request: Request) -> str | None:
    """Why a request could never run to its end, or None."""
    pool, budget = scheduler.pool, scheduler.token_budget
    longest = cached_tokens(request.prompt_length, request.max_tokens)
    need, room = longest + scheduler.guesses, pool.num_blocks * pool.block_size
    if need > room:
        return f"prompt and output need {need} cached tokens, the pool has room for {room}."
    at_once = longest if scheduler.reserve == "none" else request.prompt_length  # a preempted one is fed anew
    if budget is not None and not scheduler.chunked and at_once > budget:
        return f"up to {at_once} tokens at once, token_budget is {budget}; set chunked=True."
    return None
