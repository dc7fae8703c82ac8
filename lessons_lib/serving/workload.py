"""Workloads (lesson 05): requests made from distributions and a seed, as conversations, or read from a trace file.

A trace file has one JSON object a line with Request's names, such as
    {"id": 0, "arrival": 0.25, "prompt_length": 40, "output_length": 12}
arrival, ids, max_tokens, reply and priority may be left out; an id that is left out is the line's number.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from lessons_lib.serving.arrivals import Arrivals, AtOnce
from lessons_lib.serving.lengths import Exponential, Lengths, Uniform
from lessons_lib.serving.request import Request

COUNTS, LISTS = ("prompt_length", "output_length", "max_tokens"), ("ids", "reply")
CHAT_IDS = 1000  # the vocabulary of scripted chats
NAMES = ("id", "arrival", *COUNTS, *LISTS, "priority")  # of a trace file


@dataclass(frozen=True)
class Workload:
    """`count` requests; max_tokens: the limit that policies see, each request's own output length if None.

    vocab_size: prompts get random ids below it, where a model or a prefix cache wants ids; None: lengths alone.
    """

    count: int = 48
    prompts: Lengths = field(default_factory=lambda: Uniform(16, 128))
    outputs: Lengths = field(default_factory=lambda: Exponential(48, 192))
    arrivals: Arrivals = field(default_factory=AtOnce)
    max_tokens: int | None = None
    vocab_size: int | None = None
    seed: int = 0

    def requests(self) -> list[Request]:
        """The same requests every time. Lengths and arrivals have streams of their own: a rate changes no length.

        ValueError for a count of none, a max_tokens below 1 and a vocabulary without ids.
        """
        if self.count < 1:
            raise ValueError(f"A workload needs at least one request, not {self.count}.")
        times = self.arrivals.times(self.count, Random(f"arrivals {self.seed}"))
        rng, words = Random(f"lengths {self.seed}"), Random(f"ids {self.seed}")
        made = []
        for i, time in enumerate(times):
            prompt, output = self.prompts.draw(rng), self.outputs.draw(rng)
            ids = None if self.vocab_size is None else random_ids(prompt, self.vocab_size, words)
            made.append(Request(i, time, prompt, output, self.max_tokens, ids))
        return made


@dataclass(frozen=True)
class Conversations:
    """Multi-turn chats: each prompt repeats a system text, which all share, and the chat so far.

    The answers in the history are scripted (Request.reply), so that a trace can be replayed anywhere. arrivals: of the
    chats; the next turn of a chat comes `pause` seconds after the one before, answered or not.
    """

    count: int = 8
    turns: int = 4
    system: int = 64
    questions: Lengths = field(default_factory=lambda: Uniform(8, 32))
    answers: Lengths = field(default_factory=lambda: Exponential(48, 192))
    arrivals: Arrivals = field(default_factory=AtOnce)
    pause: float = 10.0
    seed: int = 0

    def requests(self) -> list[Request]:
        """All turns of all chats; ids are "chat.turn". ValueError for a negative pause that leads before the start."""
        rng = Random(f"chats {self.seed}")
        times = self.arrivals.times(self.count, Random(f"arrivals {self.seed}"))
        system = random_ids(self.system, CHAT_IDS, rng)
        return [turn for chat, time in enumerate(times) for turn in self._chat(chat, time, system, rng)]

    def _chat(self, chat: int, time: float, history: list[int], rng: Random) -> list[Request]:
        made = []
        for turn in range(self.turns):
            prompt = history + random_ids(self.questions.draw(rng), CHAT_IDS, rng)
            reply = random_ids(self.answers.draw(rng), CHAT_IDS, rng)
            arrival = time + turn * self.pause
            made.append(Request(f"{chat}.{turn}", arrival, 0, len(reply), ids=list(prompt), reply=reply))
            history = prompt + reply
        return made


def random_ids(count: int, vocab_size: int, rng: Random) -> list[int]:
    """So many token ids below vocab_size; ValueError for a vocab_size below 1."""
    return [rng.randrange(vocab_size) for _ in range(count)]


def read_trace(path: str | Path) -> list[Request]:
    """The requests of a trace file. ValueError naming the first bad line and what is wrong with it."""
    lines = enumerate(Path(path).read_bytes().splitlines(), 1)
    made = [_parse(line, f"{path}, line {number}", number) for number, line in lines if line.strip()]
    if not made:
        raise ValueError(f"{path} holds no request; write one JSON object a line.")
    if len({request.id for request in made}) < len(made):
        raise ValueError(f"{path} uses an id twice; ids must differ, or leave them all out.")
    return made


def write_trace(path: str | Path, requests: Sequence[Request]) -> None:
    """Write requests as a trace file that read_trace reads back."""
    rows = [{name: getattr(request.fresh(), name) for name in NAMES} for request in requests]
    kept = [{name: value for name, value in row.items() if value is not None} for row in rows]
    Path(path).write_text("".join(json.dumps(row) + "\n" for row in kept))


def _parse(line: bytes, where: str, number: int) -> Request:
    try:
        row = json.loads(line)
        problem = _problem(row)
        if problem is None:
            return Request(**{"id": number, **row})
    except UnicodeDecodeError:
        problem = "not UTF-8; save the file in that encoding."
    except ValueError as error:  # also what json raises
        problem = str(error)
    raise ValueError(f"{where}: {problem}")


def _problem(row: object) -> str | None:
    """What is wrong with a line's content; None if nothing is."""
    if not isinstance(row, dict):
        return 'not a JSON object; write {"prompt_length": 40, "output_length": 12}.'
    if missing := {"output_length"} - set(row) or ({"prompt_length"} - set(row) if "ids" not in row else set()):
        return f"{missing.pop()} is missing."
    if unknown := sorted(set(row) - set(NAMES)):
        return f"{unknown[0]!r} is not known; use {', '.join(sorted(NAMES))}."
    for name, value in row.items():
        if name in COUNTS and (type(value) is not int or value < 1):
            return f"{name} must be a whole number from 1, not {value!r}."
        if name in ("arrival", "priority") and not (type(value) in (int, float) and abs(value) <= sys.float_info.max):
            return f"{name} must be a finite number, not {value!r:.40}."
        if name == "id" and type(value) not in (int, str):
            return f"id must be a number or a text, not {value!r}."
        if name in LISTS and not (isinstance(value, list) and value and all(type(i) is int for i in value)):
            return f"{name} must be a list of token ids."
    return None
