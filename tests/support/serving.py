"""Requests for the engine that must be answered as if each ran alone: several kinds, several lengths."""

import torch
from support.proposers import Scripted, tree_with_decoys, with_side_tokens
from support.targets import decoder_target

from lessons_lib.decoding.generate import generate
from lessons_lib.decoding.proposers.early_exit import EarlyExit
from lessons_lib.decoding.proposers.prompt_lookup import PromptLookup
from lessons_lib.decoding.sampling import Sampling
from lessons_lib.decoding.sequence import Status
from lessons_lib.models import tiny
from lessons_lib.serving.engine import Engine
from lessons_lib.serving.scheduler import Scheduler

TARGET = decoder_target(tiny())
PREFIX = [7, 7, 3, 9, 11, 7, 7, 3, 5, 2]
PROMPTS = [PREFIX + [4], [5, 80, 3, 3, 61], PREFIX * 2, [1], PREFIX[:8] + [9, 9, 9], PREFIX + [4], [8] * 13, [2, 6]]
LENGTHS = [9, 14, 6, 17, 1, 12, 8, 11]
KINDS = ["plain", "lookup", "sampled", "tree"]
KNOWN: dict[tuple, list[int]] = {}


def arguments_of(kind: str, prompt, length: int) -> dict:
    """The arguments of generate for one kind of request, made anew: proposers and generators have a state."""
    rest = dict(max_new_tokens=length)
    if kind == "lookup":
        return rest | dict(proposer=PromptLookup(4, rule="transformers"))
    if kind == "early-exit":
        return rest | dict(proposer=EarlyExit(1, 3))
    if kind == "sampled":
        return rest | dict(acceptance=Sampling(1.5, top_k=40), generator=torch.Generator().manual_seed(len(prompt)))
    if kind == "tree":
        text = [*prompt, *alone("plain", prompt, length)]
        return rest | dict(proposer=Scripted(text, 97, with_side_tokens(tree_with_decoys)))
    return rest


def alone(kind: str, prompt, length: int) -> list[int]:
    """What the request is answered when nobody else is served; drafting changes nothing of it."""
    key = ("sampled" if kind == "sampled" else "plain"), tuple(prompt), length
    if key not in KNOWN:
        KNOWN[key] = generate(TARGET, prompt, **arguments_of(key[0], prompt, length)).ids
    return KNOWN[key]


def together(scheduler: Scheduler, kinds=KINDS, prompts=PROMPTS, lengths=LENGTHS, arrivals=(0.0,), target=TARGET):
    """Serve the prompts, kinds and arrivals in turn; each must be answered as alone -> (requests, log)."""
    engine, every = Engine(target, scheduler), range(len(prompts))
    turn = lambda values, i: values[i % len(values)]  # noqa: E731
    requests = [
        engine.request(prompts[i], arrival=turn(arrivals, i), **arguments_of(turn(kinds, i), prompts[i], lengths[i]))
        for i in every
    ]
    log = engine.serve(requests)
    for i in every:
        assert engine.output(requests[i]).ids == alone(turn(kinds, i), prompts[i], lengths[i])
        assert engine.output(requests[i]).finish == "length" and requests[i].status is Status.FINISHED
    assert scheduler.pool.free_blocks == scheduler.pool.num_blocks
    return requests, log
