"""The decoding loop (lessons 01, 06): propose draft tokens, run the target once, verify, commit, until the text ends.

`step` does one pass through this loop. `generate` repeats it for one sequence, the serving engine for the sequences
its scheduler picked. Techniques differ only in their proposer, acceptance rule and target.
"""

import math
from collections import abc, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

import torch
from torch import Tensor

from lessons_lib.caches.sizes import cached_tokens
from lessons_lib.decoding.checks import check_integers, kind
from lessons_lib.decoding.draft_tree import DraftTree, ModelInput, ModelOutput, make_input, plain_input
from lessons_lib.decoding.proposers import Proposer
from lessons_lib.decoding.sampling import Acceptance, Greedy
from lessons_lib.decoding.sequence import Sequence, StoppingCriteria
from lessons_lib.decoding.targets import as_target
from lessons_lib.decoding.text import Detokenizer, Prompt, StoppedText, as_texts, encode
from lessons_lib.measure.clock import sync


@dataclass(slots=True)
class StepStats:
    """Counts and times of one forward pass for one sequence.

    Times are in seconds. With several sequences, t_propose and t_pass, which t_total contains, are the whole batch's.
    """

    length_before: int  # committed tokens before the step, prompt included
    num_input_tokens: int  # tokens of the pass: uncomputed tokens, tree nodes, side tokens
    proposed: int = 0  # nodes of the draft tree
    depth: int = 0  # levels of the draft tree
    accepted: int = 0  # draft tokens
    committed: int = 0  # new tokens: accepted draft tokens, then the target's own, unless a draft token ended the text
    draft_calls: int = 0  # forward passes of a draft model
    is_prefill: bool = False  # no output token existed before this pass
    t_propose: float = 0.0
    t_pass: float = 0.0
    t_accept: float = 0.0
    t_commit: float = 0.0
    t_total: float = 0.0


def after_prefill(stats: abc.Sequence[StepStats]) -> list[StepStats]:
    """The steps after prefill."""
    return [step for step in stats if not step.is_prefill]


def tokens_per_pass(stats: abc.Sequence[StepStats]) -> float:
    """tau: tokens committed per target forward pass, bonus token included, prefill excluded. Plain decoding: 1.

    nan if there is no step after prefill.
    """
    steps = after_prefill(stats)
    return sum(step.committed for step in steps) / len(steps) if steps else float("nan")


def step(target, seqs: list[Sequence]) -> list[list[int]]:
    """Run one decoding step for all sequences, with a single target forward pass -> the tokens each one committed.

    A sequence commits at least one token, or none while its prompt is only partly computed. Appends one StepStats to
    the stats of each sequence.
    """
    committed, start = [], perf_counter()
    # Propose: each sequence drafts a tree
    inputs = draft(seqs)
    drafted = perf_counter()
    # Run: one forward pass over uncomputed tokens and draft trees of all sequences
    outputs = target.run(inputs)
    sync(outputs[0].logits.device)  # a GPU returns before the pass has ended
    run = perf_counter()
    for seq, model_input, output in zip(seqs, inputs, outputs, strict=True):
        # Verify: accept a path of the tree and take one more token from the target
        since = perf_counter()
        path, tokens = verify(seq, output)
        # Commit: append the tokens, drop the rejected ones from the cache
        verified = perf_counter()
        commit(seq, len(model_input.tokens), path, tokens, output)
        times = drafted - start, run - drafted, verified - since, perf_counter() - verified
        seq.stats.append(record(seq, len(model_input.tokens), path, tokens, times))
        committed.append(tokens)
    return committed


def draft(seqs: list[Sequence]) -> list[ModelInput]:
    """Draft a tree for every sequence -> the model input of each.

    Sequences whose proposers have the same type are drafted together, so a proposer may draft for the whole batch at
    once. The first output token is decoded without a draft: many proposers need the prompt's forward pass first.
    """
    # Group the sequences by type of proposer
    by_type = defaultdict(list)
    for seq in seqs:
        seq.tree = empty_tree(seq)
        if seq.tree is not None and seq.num_output_tokens:
            by_type[type(seq.proposer)].append(seq)
    # Fill the trees, one call per type
    for proposer, same in by_type.items():
        proposer.propose_batch([seq.proposer for seq in same], [seq.ids for seq in same], [seq.tree for seq in same])
    # Uncomputed tokens, followed by the tree; without a tree the input is a part of a prompt
    return [
        plain_input(seq.uncomputed_ids, seq.cache)
        if seq.tree is None
        else make_input(seq.uncomputed_ids, seq.tree, seq.cache, seq.proposer.after)
        for seq in seqs
    ]


def empty_tree(seq: Sequence) -> DraftTree | None:
    """An empty draft tree whose budget respects the cache's capacity, the scheduler's limit and the sequence's length.

    None if this pass ends before the last committed token (chunked prefill), so that there is nothing to verify.
    """
    fed, cache = seq.num_computed_tokens + len(seq.uncomputed_ids), seq.cache
    if fed < seq.num_tokens:
        return None
    room = math.inf if cache.most is None else cache.most - fed
    if seq.num_scheduled_tokens is not None:
        room = min(room, seq.num_scheduled_tokens - len(seq.uncomputed_ids))
    return DraftTree(
        max_nodes=max(0, room),
        max_depth=min(room, seq.length - seq.num_output_tokens - 1),  # the target adds one token
        max_offset=seq.context - seq.num_tokens,
        may_branch=lambda count: cache.branches(fed + count),
        cache=cache,
    )


def verify(seq: Sequence, output: ModelOutput) -> tuple[list[int], list[int]]:
    """Apply the acceptance rule (in sampling.py), then the stopping criteria -> accepted nodes, tokens to commit.

    The tree's budget keeps the tokens within the maximal length.
    """
    if seq.tree is None:
        return [], []
    # Accepted draft tokens, then one token from the target
    logits = hold_back_eos(seq, output.logits[: 1 + len(seq.tree.tokens)])
    path, own = seq.acceptance.accept(seq.tree, logits, seq.generator)
    tokens = [*(seq.tree.tokens[node] for node in path), own]
    # Cut after the token that ends the text
    for count, token in enumerate(tokens, 1):
        seq.finish_reason = seq.stopping.reason(token, seq.num_output_tokens + count)
        if seq.finish_reason:
            return path, tokens[:count]
    return path, tokens


def hold_back_eos(seq: Sequence, logits: Tensor) -> Tensor:
    """Set the logits of EOS tokens to -inf for the root and all nodes that come before `min_new_tokens`."""
    missing = seq.stopping.min_new_tokens - seq.num_output_tokens
    if missing <= 0 or not seq.stopping.eos:
        return logits
    early = [row for row, depth in enumerate([0, *seq.tree.depths]) if depth < missing]
    logits = logits.clone()
    logits[torch.tensor(early)[:, None], torch.tensor(sorted(seq.stopping.eos))] = float("-inf")
    return logits


def commit(seq: Sequence, fed: int, path: list[int], tokens: list[int], output: ModelOutput) -> None:
    """Append the tokens, drop the cache entries of rejected draft tokens, and let the proposer observe the step.

    When served, the blocks of rejected draft tokens are freed afterwards, in Scheduler.commit.
    """
    if tokens:
        path = path[: len(tokens) - 1]  # the newest token does not stay cached, even if it was a draft token
        root = seq.num_tokens - 1  # cache entry of the root; node i has entry root + 1 + i
        seq.cache.keep(root + 1, [root + 1 + node for node in path])
    seq.commit(fed, tokens)
    if tokens:
        seq.proposer.observe(seq.tree, path, tokens, output)


def record(seq: Sequence, fed: int, path: list[int], tokens: list[int], times: tuple[float, ...]) -> StepStats:
    """StepStats of one sequence after its commit. times: seconds to propose, run, verify and commit."""
    before = seq.num_tokens - len(tokens)
    tree = seq.tree or DraftTree()
    return StepStats(
        length_before=before,
        num_input_tokens=fed,
        proposed=len(tree.tokens),
        depth=tree.depth,
        accepted=min(len(path), len(tokens)),
        committed=len(tokens),
        draft_calls=tree.draft_calls,
        is_prefill=before == seq.prompt_length,
        t_propose=times[0],
        t_pass=times[1],
        t_accept=times[2],
        t_commit=times[3],
        t_total=sum(times),
    )


@dataclass(frozen=True)
class Output:
    """Result of `generate`.

    ids: the new tokens, including the one that ended the text. text: the decoded ids without special tokens, cut
    before a stop text; None without a tokenizer. stats: one StepStats per target forward pass. finish: "eos", "stop"
    or "length".
    """

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
    """Continue `prompt` with up to `max_new_tokens` tokens.

    target: a Target, a LanguageModel, or any causal LM of transformers.
    prompt: text, token ids (a list, a tensor, or a tokenizer's output for one text), or messages
        ([{"role": "user", "content": ...}]). Only messages get the chat template.
    proposer: proposes draft tokens; None is plain decoding.
    acceptance: the acceptance rule, Greedy() by default.
    min_new_tokens: EOS tokens have probability 0 before this many tokens.
    stop: one or several texts. The output ends as soon as one of them is complete, even before `min_new_tokens`, as in
        transformers. Special tokens are no part of the text; those that end one are the model's own.
    generator: randomness of sampling, on any device.
    on_tokens: called with the new ids after every step, such as a TextStream. If it has a method `end`, that is called
        after the last step, also if an error or an interruption ends the text.

    Raises ValueError for a prompt that is empty, has ids outside the vocabulary, or does not fit the context together
    with the new tokens; Unsupported if the proposer needs an ability that the target does not offer.
    """
    target = as_target(target)
    if on_tokens is not None and (not callable(on_tokens) or isinstance(on_tokens, type)):
        raise TypeError(f"on_tokens must be a function or a TextStream(...), not {on_tokens!r}")
    seq = new_sequence(target, prompt, proposer, acceptance, max_new_tokens, min_new_tokens, stop, generator)
    try:
        while seq.finish_reason is None:
            (tokens,) = step(target, [seq])
            if on_tokens is not None:
                on_tokens(tokens)
    finally:  # a TextStream shows what it holds back, and is ready for another text
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
    """Check the arguments and make a sequence that is ready for its first step. Arguments and errors as in `generate`.

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
    """Prepare a sequence with ids for decoding: set its proposer, acceptance rule, cache and stopping criteria.

    Without stopping criteria only the length ends it. Raises ValueError if the sequence does not fit the context,
    Unsupported as `generate` does.
    """
    if cached_tokens(seq.prompt_length, seq.length) > target.context:
        raise ValueError(
            f"a prompt of {seq.prompt_length} tokens and {seq.length} new ones do not fit the context of "
            f"{target.context}; shorten the prompt or lower max_new_tokens"
        )
    seq.proposer = Proposer() if proposer is None else proposer
    seq.acceptance = Greedy() if acceptance is None else acceptance
    target.check(seq.proposer)
    seq.proposer.reset(target, seq.ids)
    seq.cache, seq.context = target.new_cache(cached_tokens(seq.prompt_length, seq.length)), target.context
    seq.generator = generator
    seq.stopping = StoppingCriteria() if stopping is None else stopping
    return seq


def check_kinds(proposer, acceptance, generator) -> None:
    """Raise TypeError for an argument of the wrong kind, such as a class instead of an instance, or a seed."""
    if not isinstance(proposer, Proposer | None):
        raise TypeError(f"proposer must be one such as PromptLookup(), not {kind(proposer)}")
    if acceptance is not None and (isinstance(acceptance, type) or not hasattr(acceptance, "accept")):
        raise TypeError(f"acceptance must be a rule such as Greedy() or Sampling(), not {kind(acceptance)}")
    if not isinstance(generator, torch.Generator | None):
        raise TypeError(
            f"generator must be a torch.Generator, not {kind(generator)}; for a seed use "
            "torch.Generator().manual_seed(seed)"
        )


def text_of(tokenizer, seq: Sequence) -> str | None:
    """The decoded output, cut before the stop text that ended it; None without a tokenizer."""
    if seq.stopping.stop:
        return seq.stopping.stop.text
    if tokenizer is None:
        return None
    text = Detokenizer(tokenizer)
    return "".join(map(text.add, seq.output_ids)) + text.rest()
