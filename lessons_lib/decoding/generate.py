"""The decoding loop (lessons 01, 06): propose, run the target once, accept, commit; until the text ends.

`step` is the whole of decoding: `generate` repeats it for one sequence, the serving engine for those that its scheduler
picked. Techniques differ only in their proposers, acceptance rules and targets.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter

import numpy as np
import torch
from torch import Tensor

from lessons_lib.caches.cache import Cache
from lessons_lib.caches.sizes import cached_tokens
from lessons_lib.decoding.draft_tree import Block, DraftTree, Scores, make_block, plain_block
from lessons_lib.decoding.proposers import Proposer, check_integers, whole
from lessons_lib.decoding.sampling import Acceptance, Greedy
from lessons_lib.decoding.streaming import Detokenizer, StoppedText, as_texts
from lessons_lib.decoding.targets import as_target


@dataclass(slots=True)
class Step:
    """One target forward of one row. Times in seconds; with several rows the forward's time is the batch's."""

    length_before: int  # committed tokens, prompt included
    forwarded: int  # tokens fed: what the cache lacked, the tree, side tokens
    proposed: int = 0  # tree nodes
    depth: int = 0
    scratch: int = 0
    accepted: int = 0
    committed: int = 0
    draft_calls: int = 0
    is_prefill: bool = False
    eos_cut: bool = False
    t_propose: float = 0.0
    t_forward: float = 0.0
    t_accept: float = 0.0
    t_commit: float = 0.0
    t_total: float = 0.0


def after_prefill(trace: Sequence[Step]) -> list[Step]:
    """Its steps without those that fed the prompt."""
    return [step for step in trace if not step.is_prefill]


def tokens_per_forward(trace: Sequence[Step]) -> float:
    """tau: tokens committed per verification forward, bonus included, prefill left out. Plain decoding is 1.

    nan for a trace of the prefill alone.
    """
    steps = after_prefill(trace)
    return sum(step.committed for step in steps) / len(steps) if steps else float("nan")


def compression(trace: Sequence[Step]) -> float:
    """CR: generated tokens over all target forwards, prefill included. ZeroDivisionError for an empty trace."""
    return sum(step.committed for step in trace) / len(trace)


@dataclass
class Ending:
    """When a row ends. eos: ids that end it; stop: its new text, given every new token once (None: no stop texts)."""

    max_new_tokens: int
    min_new_tokens: int
    eos: frozenset[int]
    stop: StoppedText | None

    def reason(self, token: int, count: int) -> str | None:
        """Why a text ends with this token, the `count`-th new one: "eos", "stop", "length", or None: it goes on."""
        if self.stop:
            self.stop.add(token)
        if token in self.eos and count > self.min_new_tokens:
            return "eos"
        if self.stop and self.stop.ended:
            return "stop"
        return "length" if count >= self.max_new_tokens else None


@dataclass
class Row:
    """One sequence in the making. ids: prompt and committed tokens; the cache lacks the last of them, or more.

    context: positions the target has. chunk: at most so many tokens are fed in one step, draft tokens included (None:
    any number). tree: what was drafted in the step at hand; None while its pass does not reach the last token.
    """

    ids: list[int]
    prompt_length: int
    cache: Cache
    ending: Ending
    proposer: Proposer
    acceptance: Acceptance
    generator: torch.Generator | None
    context: int
    chunk: int | None = None
    trace: list[Step] = field(default_factory=list)
    finish: str | None = None
    tree: DraftTree | None = None

    @property
    def new(self) -> list[int]:
        """The tokens committed so far, without the prompt."""
        return self.ids[self.prompt_length :]

    @property
    def uncomputed(self) -> list[int]:
        """The committed tokens that the next pass feeds: all that the cache lacks, or as many as `chunk` allows."""
        cached = self.cache.length()
        return self.ids[cached : None if self.chunk is None else cached + self.chunk]

    @property
    def may_draft(self) -> bool:
        """Whether there is something to draft from: the first token after the prompt is decoded plainly."""
        return self.tree is not None and len(self.ids) > self.prompt_length

    def start(self) -> None:
        """Begin a step with an empty tree. Its budget: what the cache, `chunk` and the text's length leave."""
        fed = self.cache.length() + len(self.uncomputed)
        if fed < len(self.ids):  # a part of the prompt
            self.tree = None
            return
        room = math.inf if self.cache.most is None else self.cache.most - fed
        if self.chunk is not None:
            room = min(room, self.chunk - len(self.uncomputed))
        left = self.prompt_length + self.ending.max_new_tokens - len(self.ids)
        self.tree = DraftTree(
            max_nodes=max(0, room),
            max_depth=min(room, left - 1),  # the pass adds a token of its own
            max_offset=self.context - len(self.ids),
            may_branch=lambda count: self.cache.branches(fed + count),
        )

    def model_input(self) -> Block:
        """What the target is fed: a part of the prompt, or the root and the tree."""
        if self.tree is None:
            return plain_block(self.uncomputed, self.cache)
        return make_block(self.uncomputed, self.tree, self.cache, self.proposer.after)

    def verify(self, scores: Scores) -> tuple[list[int], list[int]]:
        """Apply the acceptance rule, and end the text where it must end -> accepted nodes, tokens to commit."""
        if self.tree is None:
            return [], []
        logits = self._hold_back_eos(scores.logits[: 1 + len(self.tree.tokens)])
        path, bonus = self.acceptance.accept(self.tree, logits, self.generator)
        return path, self._until_end([*(self.tree.tokens[node] for node in path), bonus])

    def commit(self, path: list[int], tokens: list[int], scores: Scores) -> None:
        """Append the tokens, drop the cache entries of rejected draft tokens, and tell the proposer."""
        if self.tree is None:
            return
        path = path[: len(tokens) - 1]  # the cache lacks the last token, even where it was a draft token
        first = len(self.ids)  # entry of node 0: everything committed so far is cached now
        self.cache.keep(first, [first + node for node in path])
        self.ids.extend(tokens)
        self.proposer.observe(self.tree, path, tokens, scores)

    def _hold_back_eos(self, logits: Tensor) -> Tensor:
        """No end of text before min_new_tokens, at whatever depth of the tree a row of logits stands."""
        missing = self.ending.min_new_tokens - (len(self.ids) - self.prompt_length)
        if missing <= 0 or not self.ending.eos:
            return logits
        early = [row for row, depth in enumerate([0, *self.tree.depths]) if depth < missing]
        logits = logits.clone()
        logits[torch.tensor(early)[:, None], torch.tensor(sorted(self.ending.eos))] = float("-inf")
        return logits

    def _until_end(self, tokens: list[int]) -> list[int]:
        committed = len(self.ids) - self.prompt_length
        for count, token in enumerate(tokens, 1):
            self.finish = self.ending.reason(token, committed + count)
            if self.finish:
                return tokens[:count]
        return tokens


def step(target, rows: Sequence[Row]) -> list[list[int]]:
    """One forward pass of the target for any number of sequences -> the tokens that each committed.

    That is 0 tokens for a part of a prompt, else 1 to n. Every sequence records a Step.
    """
    committed, start = [], perf_counter()
    inputs = draft(rows)
    drafted = perf_counter()
    outputs = target.run(inputs)
    run = perf_counter()
    for row, block, scores in zip(rows, inputs, outputs, strict=True):
        since = perf_counter()
        path, tokens = row.verify(scores)
        verified = perf_counter()
        row.commit(path, tokens, scores)
        times = drafted - start, run - drafted, verified - since, perf_counter() - verified
        row.trace.append(record(row, len(block.tokens), path, tokens, times))
        committed.append(tokens)
    return committed


def draft(rows: Sequence[Row]) -> list[Block]:
    """Each sequence's draft tree -> what each feeds. Proposers of one kind may propose for all their texts at once."""
    kinds = defaultdict(list)
    for row in rows:
        row.start()
        if row.may_draft:
            kinds[type(row.proposer)].append(row)
    for kind, same in kinds.items():
        kind.propose_batch([row.proposer for row in same], [row.ids for row in same], [row.tree for row in same])
    return [row.model_input() for row in rows]


def record(row: Row, fed: int, path: list[int], tokens: list[int], times: tuple[float, ...]) -> Step:
    """The trace's record of one sequence's share of a step that is done; times: seconds of its four parts."""
    before = len(row.ids) - len(tokens)
    tree = row.tree or DraftTree()
    return Step(
        length_before=before,
        forwarded=fed,
        proposed=len(tree.tokens),
        depth=tree.depth,
        scratch=len(tree.side.tokens),
        accepted=min(len(path), len(tokens)),
        committed=len(tokens),
        draft_calls=tree.draft_calls,
        is_prefill=before == row.prompt_length,
        eos_cut=row.finish == "eos" and len(tokens) <= len(path),
        t_propose=times[0],
        t_forward=times[1],
        t_accept=times[2],
        t_commit=times[3],
        t_total=sum(times),
    )


Prompt = str | Sequence[int] | Tensor | np.ndarray | Mapping[str, Sequence[int] | Tensor] | Sequence[dict[str, str]]


@dataclass(frozen=True)
class Output:
    """ids: new tokens, the one that ended the text included; text: them decoded, without special tokens and
    cut before a stop text; trace: one Step per target forward; finish: "eos", "stop" or "length"."""

    ids: list[int]
    text: str | None
    trace: list[Step]
    finish: str


@torch.no_grad()
def generate(
    target,
    prompt: Prompt,
    proposer: Proposer | None = None,
    acceptance: Acceptance | None = None,
    max_new_tokens: int = 128,
    min_new_tokens: int = 0,
    stop: str | Sequence[str] | None = None,
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
    row = new_row(target, prompt, proposer, acceptance, max_new_tokens, min_new_tokens, stop, generator)
    while row.finish is None:
        (tokens,) = step(target, [row])
        if on_tokens:
            on_tokens(tokens)
    if end := getattr(on_tokens, "end", None):
        end()
    return Output(row.new, text_of(target.tokenizer, row), row.trace, row.finish)


def new_row(
    target,
    prompt: Prompt,
    proposer: Proposer | None,
    acceptance: Acceptance | None,
    max_new_tokens: int,
    min_new_tokens: int = 0,
    stop: str | Sequence[str] | None = None,
    generator: torch.Generator | None = None,
) -> Row:
    """A row ready for its first step, all that can be wrong with it checked.

    Arguments, ValueError, TypeError and Unsupported as `generate`.
    """
    check_kinds(proposer, acceptance, generator)
    check_integers(max_new_tokens=max_new_tokens, min_new_tokens=min_new_tokens)
    if max_new_tokens < 1 or not 0 <= min_new_tokens <= max_new_tokens:
        raise ValueError(
            f"max_new_tokens must be at least 1 and min_new_tokens between 0 and it, not {max_new_tokens} and "
            f"{min_new_tokens}"
        )
    stopped = StoppedText(target.tokenizer, stop) if as_texts(stop) else None
    ids = encode(target, prompt)
    check_fits(target, len(ids), max_new_tokens)
    proposer = Proposer() if proposer is None else proposer
    acceptance = Greedy() if acceptance is None else acceptance
    target.check(proposer)
    proposer.reset(target, ids)
    ending = Ending(max_new_tokens, min_new_tokens, frozenset(target.eos), stopped)
    cache = target.new_cache(cached_tokens(len(ids), max_new_tokens))
    return Row(ids, len(ids), cache, ending, proposer, acceptance, generator, target.context)


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


def kind(value) -> str:
    """What an argument is, for error messages."""
    return f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__


def encode(target, prompt: Prompt) -> list[int]:
    """Text, ids (T) or (1, T), what a tokenizer returns for one text, or messages -> T token ids.

    Raises ValueError if there are none, if one is not in the vocabulary, and for messages without a chat template;
    TypeError for text or messages without a tokenizer, for several prompts, and for anything else.
    """
    if isinstance(prompt, str):
        ids = _tokenizer(target)(prompt).input_ids
    elif isinstance(prompt, Mapping) and "input_ids" in prompt:
        ids = token_ids(prompt["input_ids"])
        if "attention_mask" in prompt:  # 0 marks padding
            ids = [token for token, real in zip(ids, one_row(prompt["attention_mask"]), strict=True) if real]
    elif isinstance(prompt, Sequence) and prompt and all(isinstance(m, Mapping) for m in prompt):
        ids = _chat_ids(target, list(prompt))
    else:
        ids = token_ids(prompt)
    if not ids:
        raise ValueError("the prompt is empty; give at least one token")
    if outside := [token for token in ids if not 0 <= token < target.vocab_size]:
        raise ValueError(f"token id {outside[0]} is not in this model's vocabulary of {target.vocab_size}")
    return ids


def token_ids(prompt: Sequence[int] | Tensor | np.ndarray) -> list[int]:
    """(T) or (1, T) -> T ids, unchecked. TypeError for anything but integers, and for several rows."""
    row = one_row(prompt)
    wrong = [token for token in row if not whole(token)]
    if wrong and isinstance(wrong[0], str | Sequence | Mapping):
        raise TypeError("generate continues one prompt; call it once for each, or use an Engine for several")
    if wrong:
        raise TypeError(f"token ids must be integers, not {kind(wrong[0])}")
    return list(map(int, row))


def one_row(values: Sequence | Tensor | np.ndarray) -> list:
    """(T) or (1, T), tensors or arrays at either level -> T values of any kind; several rows stay as they are.

    TypeError for what is no sequence.
    """
    if isinstance(values, Tensor | np.ndarray):
        values = values.tolist()
    if not isinstance(values, Sequence) or isinstance(values, bytes | bytearray | memoryview):
        raise TypeError(f"a prompt is a text, token ids or a list of messages, not {kind(values)}")
    row = [value.tolist() if isinstance(value, Tensor | np.ndarray) else value for value in values]
    return list(row[0]) if len(row) == 1 and isinstance(row[0], list | tuple) else row


def check_fits(target, prompt_length: int, max_new_tokens: int) -> None:
    """Raise ValueError if prompt and new tokens do not fit the model's context."""
    if cached_tokens(prompt_length, max_new_tokens) > target.context:
        raise ValueError(
            f"a prompt of {prompt_length} tokens and {max_new_tokens} new ones do not fit the context of "
            f"{target.context}; shorten the prompt or lower max_new_tokens"
        )


def text_of(tokenizer, row: Row) -> str | None:
    """What was written, cut before the stop text that ended it, if any; None without a tokenizer."""
    if row.ending.stop:
        return row.ending.stop.text
    if tokenizer is None:
        return None
    text = Detokenizer(tokenizer)
    return "".join(map(text.add, row.new)) + text.rest()


def _tokenizer(target):
    if target.tokenizer is None:
        raise TypeError("this target has no tokenizer: pass token ids, or a model from lessons_lib.load")
    return target.tokenizer


def _chat_ids(target, messages: list[Mapping]) -> list[int]:
    if not all("role" in m and ("content" in m or "tool_calls" in m) for m in messages):
        raise TypeError('each message needs a role and a content, such as {"role": "user", "content": "Hello"}')
    tokenizer = _tokenizer(target)
    if getattr(tokenizer, "chat_template", "") is None:
        raise ValueError("this model's tokenizer has no chat template: pass the prompt as text")
    return tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
