"""The decoding loop (lessons 01, 06): propose, run the target once, accept, commit; until the text ends.

`step` is the whole of decoding: `generate` repeats it for one sequence, the serving engine for those that its scheduler
picked. Techniques differ only in their proposers, acceptance rules and targets.
"""

import math
from collections import abc, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

import torch
from torch import Tensor

from lessons_lib.caches.sizes import cached_tokens
from lessons_lib.decoding.draft_tree import DraftTree, ModelInput, ModelOutput, make_input, plain_input
from lessons_lib.decoding.proposers import Proposer, check_integers
from lessons_lib.decoding.sampling import Acceptance, Greedy
from lessons_lib.decoding.sequence import Sequence, StoppingCriteria
from lessons_lib.decoding.targets import as_target
from lessons_lib.decoding.text import Detokenizer, Prompt, StoppedText, as_texts, encode, kind


@dataclass(slots=True)
class StepStats:
    """One forward pass for one sequence. Times in seconds; with several sequences the forward pass's is the batch's."""

    length_before: int  # committed tokens, prompt included
    num_input_tokens: int  # tokens fed: what the cache lacked, the tree, side tokens
    proposed: int = 0  # tree nodes
    depth: int = 0
    scratch: int = 0
    accepted: int = 0
    committed: int = 0
    draft_calls: int = 0
    is_prefill: bool = False
    eos_cut: bool = False
    t_propose: float = 0.0
    t_pass: float = 0.0
    t_accept: float = 0.0
    t_commit: float = 0.0
    t_total: float = 0.0


def after_prefill(stats: abc.Sequence[StepStats]) -> list[StepStats]:
    """Its steps without those that fed the prompt."""
    return [step for step in stats if not step.is_prefill]


def tokens_per_pass(stats: abc.Sequence[StepStats]) -> float:
    """tau: tokens committed per verification forward, bonus included, prefill left out. Plain decoding is 1.

    nan for a trace of the prefill alone.
    """
    steps = after_prefill(stats)
    return sum(step.committed for step in steps) / len(steps) if steps else float("nan")


def compression(stats: abc.Sequence[StepStats]) -> float:
    """CR: generated tokens over all target forward passes, prefill included. ZeroDivisionError for an empty trace."""
    return sum(step.committed for step in stats) / len(stats)


def step(target, seqs: list[Sequence]) -> list[list[int]]:
    """One forward pass of the target for any number of sequences -> the tokens that each committed.

    That is 0 tokens for a part of a prompt, else 1 to n. Every sequence records a Step.
    """
    committed, start = [], perf_counter()
    inputs = draft(seqs)
    drafted = perf_counter()
    outputs = target.run(inputs)
    run = perf_counter()
    for seq, block, scores in zip(seqs, inputs, outputs, strict=True):
        since = perf_counter()
        path, tokens = verify(seq, scores)
        verified = perf_counter()
        commit(seq, len(block.tokens), path, tokens, scores)
        times = drafted - start, run - drafted, verified - since, perf_counter() - verified
        seq.stats.append(record(seq, len(block.tokens), path, tokens, times))
        committed.append(tokens)
    return committed


def draft(seqs: list[Sequence]) -> list[ModelInput]:
    """Let every sequence draft a tree -> what each feeds. Proposers of one kind may draft for all their texts at once.

    The first token after the prompt is decoded plainly: there is nothing to draft from before.
    """
    by_type = defaultdict(list)
    for seq in seqs:
        seq.tree = empty_tree(seq)
        if seq.tree is not None and seq.num_output_tokens:
            by_type[type(seq.proposer)].append(seq)
    for proposer, same in by_type.items():
        proposer.propose_batch([seq.proposer for seq in same], [seq.ids for seq in same], [seq.tree for seq in same])
    return [
        plain_input(seq.uncomputed_ids, seq.cache)
        if seq.tree is None
        else make_input(seq.uncomputed_ids, seq.tree, seq.cache, seq.proposer.after)
        for seq in seqs
    ]


def empty_tree(seq: Sequence) -> DraftTree | None:
    """A tree with the budget that cache, schedule and length leave; None where only a part of the text is fed."""
    fed, cache = seq.num_computed_tokens + len(seq.uncomputed_ids), seq.cache
    if fed < seq.num_tokens:
        return None
    room = math.inf if cache.most is None else cache.most - fed
    if seq.num_scheduled_tokens is not None:
        room = min(room, seq.num_scheduled_tokens - len(seq.uncomputed_ids))
    return DraftTree(
        max_nodes=max(0, room),
        max_depth=min(room, seq.length - seq.num_output_tokens - 1),  # the pass adds a token of its own
        max_offset=seq.context - seq.num_tokens,
        may_branch=lambda count: cache.branches(fed + count),
    )


def verify(seq: Sequence, scores: ModelOutput) -> tuple[list[int], list[int]]:
    """Apply the acceptance rule, and end the text where it must end -> accepted nodes, tokens to commit."""
    if seq.tree is None:
        return [], []
    logits = hold_back_eos(seq, scores.logits[: 1 + len(seq.tree.tokens)])
    path, own = seq.acceptance.accept(seq.tree, logits, seq.generator)
    tokens = [*(seq.tree.tokens[node] for node in path), own]
    for i, token in enumerate(tokens):
        count = seq.num_output_tokens + i + 1
        seq.finish_reason = seq.stopping.reason(token, count) or ("length" if count >= seq.length else None)
        if seq.finish_reason:
            return path, tokens[: i + 1]
    return path, tokens


def hold_back_eos(seq: Sequence, logits: Tensor) -> Tensor:
    """Forbid end tokens before min_new_tokens, at whatever depth of the tree a row of logits stands."""
    missing = seq.stopping.min_new_tokens - seq.num_output_tokens
    if missing <= 0 or not seq.stopping.eos:
        return logits
    early = [row for row, depth in enumerate([0, *seq.tree.depths]) if depth < missing]
    logits = logits.clone()
    logits[torch.tensor(early)[:, None], torch.tensor(sorted(seq.stopping.eos))] = float("-inf")
    return logits


def commit(seq: Sequence, fed: int, path: list[int], tokens: list[int], scores: ModelOutput) -> None:
    """Append the tokens, drop the cache entries of rejected draft tokens, and show the proposer what happened."""
    if tokens:
        path = path[: len(tokens) - 1]  # the newest token is never cached, even where it was a draft token
        root = seq.num_tokens - 1  # its entry; node i has entry root + 1 + i
        seq.cache.keep(root + 1, [root + 1 + node for node in path])
    seq.commit(fed, tokens)
    if tokens:
        seq.proposer.observe(seq.tree, path, tokens, scores)


def record(seq: Sequence, fed: int, path: list[int], tokens: list[int], times: tuple[float, ...]) -> StepStats:
    """One sequence's share of a step that is done; times: seconds of its four parts."""
    before = seq.num_tokens - len(tokens)
    tree = seq.tree or DraftTree()
    return StepStats(
        length_before=before,
        num_input_tokens=fed,
        proposed=len(tree.tokens),
        depth=tree.depth,
        scratch=len(tree.side.tokens),
        accepted=min(len(path), len(tokens)),
        committed=len(tokens),
        draft_calls=tree.draft_calls,
        is_prefill=before == seq.prompt_length,
        eos_cut=seq.finish_reason == "eos" and len(tokens) <= len(path),
        t_propose=times[0],
        t_pass=times[1],
        t_accept=times[2],
        t_commit=times[3],
        t_total=sum(times),
    )


@dataclass(frozen=True)
class Output:
    """ids: new tokens, the one that ended the text included; text: them decoded, without special tokens and
    cut before a stop text; trace: one Step per target forward pass; finish: "eos", "stop" or "length"."""

    ids: list[int]
    text: str | None
    stats: list[StepStats]
    finish: str


@torch.no_grad()
def generate(
    target,
    prompt: Prompt,
    proposer: Proposer | None = None,
    acceptance: Acceptance | None = None,
    max_new_tokens: int = 128,
    min_new_tokens: int = 0,
    stop: str | list[str] | None = None,
    generator: torch.Generator | None = None,
    on_tokens: Callable[[list[int]], None] | None = None,
) -> Output:
    """Continue `prompt` by up to `max_new_tokens` tokens; no end token ends it before `min_new_tokens`.

    target: a Target, a LanguageModel, or any causal LM of transformers. prompt: text, token ids (a list, a tensor, or
    what a tokenizer returns for one text), or messages ([{"role": "user", "content": ...}], the only form that gets
    the chat template). proposer: guesses ahead (None: plain decoding); acceptance: Greedy() unless given. stop: texts
    that end the output as soon as they are complete, before `min_new_tokens` too, as in transformers. generator:
    randomness of sampling, on any device. on_tokens: called with the new ids after every step, such as a TextStream;
    its `end`, if it has one, after the last.

    Raises ValueError for an empty prompt, ids outside the vocabulary, a prompt that does not fit the context together
    with the new tokens, max_new_tokens below 1, a min_new_tokens outside 0 to that, an empty stop text, and what the
    proposer refuses; TypeError for what cannot decode, for arguments of the wrong kind, and for text or stop texts
    without a tokenizer; Unsupported if the target lacks what the proposer needs.
    """
    target = as_target(target)
    if on_tokens is not None and (not callable(on_tokens) or isinstance(on_tokens, type)):
        raise TypeError(f"on_tokens must be a function or a TextStream(...), not {on_tokens!r}")
    seq = new_sequence(target, prompt, proposer, acceptance, max_new_tokens, min_new_tokens, stop, generator)
    while seq.finish_reason is None:
        (tokens,) = step(target, [seq])
        if on_tokens:
            on_tokens(tokens)
    if end := getattr(on_tokens, "end", None):
        end()
    return Output(seq.output_ids, text_of(target.tokenizer, seq), seq.stats, seq.finish_reason)


def new_sequence(
    target,
    prompt: Prompt,
    proposer: Proposer | None = None,
    acceptance: Acceptance | None = None,
    max_new_tokens: int = 128,
    min_new_tokens: int = 0,
    stop: str | list[str] | None = None,
    generator: torch.Generator | None = None,
    **rest,
) -> Sequence:
    """A sequence ready for its first step, with everything checked. Arguments and errors as `generate`.

    rest: further fields of the Sequence.
    """
    check_kinds(proposer, acceptance, generator)
    check_integers(max_new_tokens=max_new_tokens, min_new_tokens=min_new_tokens)
    if max_new_tokens < 1 or not 0 <= min_new_tokens <= max_new_tokens:
        raise ValueError(
            f"max_new_tokens must be at least 1 and min_new_tokens between 0 and it, not {max_new_tokens} and "
            f"{min_new_tokens}"
        )
    stopped = StoppedText(target.tokenizer, stop) if as_texts(stop) else None
    stopping = StoppingCriteria(min_new_tokens, frozenset(target.eos), stopped)
    seq = Sequence(ids=encode(target, prompt), output_length=max_new_tokens, **rest)
    return ready(target, seq, proposer, acceptance, stopping, generator)


def ready(
    target,
    seq: Sequence,
    proposer: Proposer | None = None,
    acceptance: Acceptance | None = None,
    stopping: StoppingCriteria | None = None,
    generator: torch.Generator | None = None,
) -> Sequence:
    """Give a sequence with ids what decoding needs; without stopping criteria nothing but its length ends it.

    ValueError for a text that does not fit the context; Unsupported as `generate`.
    """
    check_fits(target, seq.prompt_length, seq.length)
    seq.proposer = Proposer() if proposer is None else proposer
    seq.acceptance = Greedy() if acceptance is None else acceptance
    target.check(seq.proposer)
    seq.proposer.reset(target, seq.ids)
    seq.cache, seq.context = target.new_cache(cached_tokens(seq.prompt_length, seq.length)), target.context
    seq.generator = generator
    seq.stopping = StoppingCriteria() if stopping is None else stopping
    return seq


def check_kinds(proposer, acceptance, generator) -> None:
    """Raise TypeError for what is no proposer, no acceptance rule or no generator, such as a class or a seed."""
    if not isinstance(proposer, Proposer | None):
        raise TypeError(f"proposer must be one such as PromptLookup(), not {kind(proposer)}")
    if acceptance is not None and (isinstance(acceptance, type) or not hasattr(acceptance, "accept")):
        raise TypeError(f"acceptance must be a rule such as Greedy() or Sampling(), not {kind(acceptance)}")
    if not isinstance(generator, torch.Generator | None):
        raise TypeError(
            f"generator must be a torch.Generator, not {kind(generator)}; for a seed use "
            "torch.Generator().manual_seed(seed)"
        )


def check_fits(target, prompt_length: int, max_new_tokens: int) -> None:
    """Raise ValueError if prompt and new tokens do not fit the model's context."""
    if cached_tokens(prompt_length, max_new_tokens) > target.context:
        raise ValueError(
            f"a prompt of {prompt_length} tokens and {max_new_tokens} new ones do not fit the context of "
            f"{target.context}; shorten the prompt or lower max_new_tokens"
        )


def text_of(tokenizer, seq: Sequence) -> str | None:
    """What was written, cut before the stop text that ended it, if any; None without a tokenizer."""
    if seq.stopping.stop:
        return seq.stopping.stop.text
    if tokenizer is None:
        return None
    text = Detokenizer(tokenizer)
    return "".join(map(text.add, seq.output_ids)) + text.rest()
