"""OpenAI's completions and chat completions as JSON (lesson 05): fields of requests, forms of answers, errors.

Names, defaults and ranges of the fields are OpenAI's. `top_k` and `ignore_eos` are extensions that vLLM has as well.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Self

import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator

from lessons_lib.decoding.sampling import Acceptance, Greedy, Sampling
from lessons_lib.decoding.sequence import Sequence
from lessons_lib.decoding.text import Prompt

GREEDY_BELOW = 1e-5  # vLLM, too, decodes greedily at a temperature below this
NOT_OFFERED = {  # fields that are accepted only with the value that changes nothing
    "n": 1, "best_of": 1, "echo": False, "suffix": "", "logprobs": False, "top_logprobs": 0, "logit_bias": {},
    "presence_penalty": 0, "frequency_penalty": 0, "tools": [], "tool_choice": "none",
    "response_format": {"type": "text"},
}  # fmt: skip


class Fields(BaseModel):
    """JSON fields with strict types. Unknown fields are refused; null means that a field is left out."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
    not_offered: ClassVar[dict[str, Any]] = {}

    @model_validator(mode="before")
    @classmethod
    def drop_neutral(cls, fields: Any) -> Any:
        """Drop null, and the neutral values of `not_offered`, whose other values are refused."""
        if not isinstance(fields, dict):
            return fields
        kept = {name: value for name, value in fields.items() if value is not None}
        for name in cls.not_offered.keys() & kept.keys():
            value, neutral = kept.pop(name), cls.not_offered[name]
            if value != neutral or isinstance(value, bool) != isinstance(neutral, bool):  # in Python, 0 == False
                raise ValueError(f"This server does not offer {name}={value!r}; leave {name} out.")
        return kept


class StreamOptions(Fields):
    """include_usage: whether the last event has the numbers of tokens."""

    include_usage: bool = False


class GenerationRequest(Fields):
    """The fields that both kinds of requests have."""

    not_offered: ClassVar[dict[str, Any]] = NOT_OFFERED
    model: str | None = None
    max_tokens: int | None = Field(None, ge=1)
    temperature: float = Field(1.0, ge=0, le=2)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=-1)  # 0 and -1: all tokens
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    stop: str | list[str] | None = None
    ignore_eos: bool = False  # continue after an end token, up to max_tokens: for measurements
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    user: str = ""  # for a provider's records; it changes no answer

    @model_validator(mode="after")
    def check_stream(self) -> Self:
        """Check that options of a stream come with a stream."""
        if "stream_options" in self.model_fields_set and not self.stream:
            raise ValueError("stream_options needs stream=true; set it, or leave stream_options out.")
        return self

    def acceptance(self) -> Acceptance:
        """The acceptance rule: greedy at temperature 0, else sampling."""
        if self.temperature < GREEDY_BELOW:
            return Greedy()
        return Sampling(self.temperature, max(0, self.top_k), self.top_p)

    def generator(self) -> torch.Generator:
        """The request's own random numbers, so that a seed gives the same text in any batch."""
        generator = torch.Generator()
        if self.seed is None:
            generator.seed()
        else:
            generator.manual_seed(self.seed)
        return generator


class CompletionRequest(GenerationRequest):
    """The body of /v1/completions. prompt: a text or token ids; or a list with one of them."""

    prompt: str | list[int] | list[str] | list[list[int]]

    def read_prompt(self) -> Prompt:
        """The prompt as text or ids."""
        if isinstance(self.prompt, str) or not self.prompt or isinstance(self.prompt[0], int):
            return self.prompt
        if len(self.prompt) > 1:
            raise ValueError(f"A request has one prompt, not {len(self.prompt)}; send a request for each.")
        return self.prompt[0]

    def limit(self, room: int) -> int:
        """Maximum number of new tokens: by default 16."""
        return self.max_tokens or 16


class TextPart(Fields):
    """A part of a message's content."""

    type: Literal["text"]
    text: str


class Message(Fields):
    """A message of a chat."""

    role: str
    content: str | list[TextPart]

    def for_template(self) -> dict[str, str]:
        """The message as chat templates take it."""
        parts = [self.content] if isinstance(self.content, str) else [part.text for part in self.content]
        return {"role": self.role, "content": "".join(parts)}


class ChatRequest(GenerationRequest):
    """The body of /v1/chat/completions."""

    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=1)

    def read_prompt(self) -> Prompt:
        """The messages, to which the chat template will be applied."""
        return [message.for_template() for message in self.messages]

    def limit(self, room: int) -> int:
        """Maximum number of new tokens: by default as many as there is room for."""
        if self.max_tokens and self.max_completion_tokens:
            raise ValueError("max_tokens and max_completion_tokens mean the same; leave one of them out.")
        return self.max_completion_tokens or self.max_tokens or max(1, room)


@dataclass(frozen=True)
class Form:
    """Writes one answer as OpenAI's objects, of completions or of chat completions."""

    model: str
    chat: bool
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    created: int = field(default_factory=lambda: int(time.time()))  # seconds since 1970

    def whole(self, text: str, seq: Sequence) -> dict:
        """The answer as one object."""
        said = {"message": {"role": "assistant", "content": text}} if self.chat else {"text": text}
        return self._object("", [self._choice(said, finish_reason(seq))]) | {"usage": usage(seq)}

    def first(self) -> dict | None:
        """The first part of a stream: the role, in a chat."""
        return self._chunk({"role": "assistant", "content": ""}) if self.chat else None

    def piece(self, text: str) -> dict:
        """A piece of text of a stream."""
        return self._chunk({"content": text} if self.chat else {"text": text})

    def last(self, seq: Sequence) -> dict:
        """The end of a stream's text."""
        return self._chunk({} if self.chat else {"text": ""}, finish_reason(seq))

    def counts(self, seq: Sequence) -> dict:
        """The numbers of tokens, after a stream's text."""
        return self._object(".chunk", []) | {"usage": usage(seq)}

    def _chunk(self, said: dict, reason: str | None = None) -> dict:
        return self._object(".chunk", [self._choice({"delta": said} if self.chat else said, reason)])

    def _choice(self, said: dict, reason: str | None) -> dict:
        return {"index": 0, **said, "logprobs": None, "finish_reason": reason}

    def _object(self, part: str, choices: list[dict]) -> dict:
        kind = f"chat.completion{part}" if self.chat else "text_completion"
        name = f"{'chatcmpl' if self.chat else 'cmpl'}-{self.id}"
        return {"id": name, "object": kind, "created": self.created, "model": self.model, "choices": choices}


def finish_reason(seq: Sequence) -> str:
    """OpenAI's finish reason: "length", or "stop" after an end token or a stop text."""
    return "length" if seq.finish_reason == "length" else "stop"


def usage(seq: Sequence) -> dict[str, int]:
    """OpenAI's numbers of tokens."""
    prompt, new = seq.prompt_length, seq.num_output_tokens
    return {"prompt_tokens": prompt, "completion_tokens": new, "total_tokens": prompt + new}


class APIError(Exception):
    """An answer other than 200: its status, and a sentence in OpenAI's form."""

    def __init__(self, status: int, message: str):
        super().__init__(message)
        kind = "rate_limit_error" if status == 429 else "invalid_request_error" if status < 500 else "server_error"
        self.status = status
        self.body = {"error": {"message": message, "type": kind, "param": None, "code": status}}


def problem(errors: list[dict]) -> str:
    """The first of pydantic's errors as a sentence."""
    error = max(errors, key=lambda error: len(error["loc"]))  # of a union, that of the form which fits best
    # the place without "body" and the tags of unions, such as "list[str]": messages.0.content
    *place, last = error["loc"][1:] or ["body"]
    place = [str(part) for part in place if not _is_tag(part)]
    if error["type"] == "extra_forbidden" or not _is_tag(last):  # an unknown field may be called like a tag
        place.append(str(last))
    name = ".".join(place)
    match error["type"]:
        case "extra_forbidden":
            return f"The field {name} is unknown; leave it out."
        case "missing":
            return f"The field {name} is missing."
        case "json_invalid":
            return f"The body is not JSON: {error['ctx']['error']}."
        case "value_error":
            return str(error["ctx"]["error"])
    return f"The field {name} is wrong: {error['msg']}."


def _is_tag(part: str | int) -> bool:
    return str(part).split("[")[0] in ("str", "list")
