"""`generate`: one text from one prompt, by any target, proposer and acceptance rule (lessons 01, 06)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lessons_lib.caches.sizes import cached_tokens
from lessons_lib.decoding.acceptance import Acceptance, Greedy
from lessons_lib.decoding.detokenizer import Detokenizer
from lessons_lib.decoding.proposers import Proposer, check_integers, whole
from lessons_lib.decoding.row import Ending, Row, step
from lessons_lib.decoding.stopping import StoppedText, as_texts
from lessons_lib.decoding.targets import as_target
from lessons_lib.decoding.trace import Step

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
