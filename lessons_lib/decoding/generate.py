"""`generate`: one text from one prompt, by any target, proposer and acceptance rule (lessons 01, 06)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lessons_lib.caches.sizes import cached_tokens
from lessons_lib.decoding.acceptance import Acceptance, Greedy
from lessons_lib.decoding.proposers import Proposer
from lessons_lib.decoding.row import Ending, Row, step
from lessons_lib.decoding.stopping import cut_at, stop_check
from lessons_lib.decoding.streaming import UNREADABLE
from lessons_lib.decoding.targets import as_target
from lessons_lib.decoding.trace import Step

Prompt = str | Sequence[int] | Tensor | Sequence[dict[str, str]]


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
    """Continue `prompt` by up to `max_new_tokens` tokens, but not end it before `min_new_tokens`.

    target: a Target, a LanguageModel, or any causal LM of transformers. prompt: text, token ids, or messages
    ([{"role": "user", "content": ...}], the only form that gets the chat template). proposer: guesses ahead
    (None: plain decoding); acceptance: Greedy() unless given. stop: texts that end the output when they are
    complete. generator: randomness of sampling. on_tokens: called with the new ids after every step, such
    as a TextStream; its `end`, if it has one, after the last.

    Raises ValueError for an empty prompt, ids outside the vocabulary, a prompt that does not fit the context together
    with the new tokens, max_new_tokens below 1, a min_new_tokens outside 0 to that, an empty stop text, and what the
    proposer refuses; TypeError for what cannot decode, and for text or stop texts without a tokenizer; Unsupported if
    the target lacks what the proposer needs.
    """
    target = as_target(target)
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
    if max_new_tokens < 1 or not 0 <= min_new_tokens <= max_new_tokens:
        raise ValueError(
            f"max_new_tokens must be at least 1 and min_new_tokens between 0 and it, not {max_new_tokens} and "
            f"{min_new_tokens}"
        )
    ids = encode(target, prompt)
    check_fits(target, len(ids), max_new_tokens)
    proposer = proposer or Proposer()
    target.check(proposer)
    proposer.reset(target, ids)
    check = stop_check(target.tokenizer, stop)
    ending = Ending(max_new_tokens, min_new_tokens, frozenset(target.eos), check, stop)
    cache = target.new_cache(cached_tokens(len(ids), max_new_tokens))
    return Row(ids, len(ids), cache, ending, proposer, acceptance or Greedy(), generator, target.context)


def encode(target, prompt: Prompt) -> list[int]:
    """Text, ids (T) or (1, T), or messages -> T token ids.

    Raises ValueError if there are none, if one is not in the vocabulary, and for messages without a chat template;
    TypeError for text or messages without a tokenizer, and for several prompts at once.
    """
    if isinstance(prompt, Tensor):
        prompt = prompt.squeeze(0).tolist() if prompt.ndim == 2 and len(prompt) == 1 else prompt.tolist()
    if isinstance(prompt, str) or (len(prompt) and isinstance(prompt[0], dict)):
        ids = _tokenize(target.tokenizer, prompt)
    else:
        ids = list(prompt)
    if not ids:
        raise ValueError("the prompt is empty; give at least one token")
    if outside := [token for token in ids if not 0 <= token < target.vocab_size]:
        raise ValueError(f"token id {outside[0]} is not in this model's vocabulary of {target.vocab_size}")
    return ids


def check_fits(target, prompt_length: int, max_new_tokens: int) -> None:
    """Raise ValueError if prompt and new tokens do not fit the model's context."""
    if cached_tokens(prompt_length, max_new_tokens) > target.context:
        raise ValueError(
            f"a prompt of {prompt_length} tokens and {max_new_tokens} new ones do not fit the context of "
            f"{target.context}; shorten the prompt or lower max_new_tokens"
        )


def text_of(tokenizer, row: Row) -> str | None:
    """What was written, cut before the stop text that the last token completed, if any; None without a tokenizer."""
    if tokenizer is None:
        return None
    text, before = (tokenizer.decode(ids, skip_special_tokens=True) for ids in (row.new, row.new[:-1]))
    since = len(before.rstrip(UNREADABLE))
    return cut_at(text, row.ending.stop_texts, since) if row.finish == "stop" else text


def _tokenize(tokenizer, prompt) -> list[int]:
    if tokenizer is None:
        raise TypeError("this target has no tokenizer: pass token ids, or a model from lessons_lib.load")
    if isinstance(prompt, str):
        return tokenizer(prompt).input_ids
    return tokenizer.apply_chat_template(list(prompt), add_generation_prompt=True, return_dict=False)
