"""The held-out prompts that travel with the package (lesson 06), so that a draft is measured wherever it runs.

`python -m lessons_lib.training.held_out --prompts FILE` writes lessons_lib/data/held_out.jsonl anew, in the format
of the questions beside it, each line with its source.
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from lessons_lib.data import HELD_OUT, Question, questions
from lessons_lib.decoding.generate import encode
from lessons_lib.models import load
from lessons_lib.training.prompts import LONGEST, UserTurn, read

CATEGORIES = {"chat": "chat", "qa": "qa", "summary": "summarization", "code": "code", "math": "math"}
PER_KIND = 12
LONGER = {"qa": 700}  # tokens, with a passage to answer from


def measured() -> list[Question]:
    """What drafts are measured on: PER_KIND questions of every kind, small kinds filled up with our own."""
    found = [*questions(HELD_OUT), *questions()]
    return [
        question for kind in CATEGORIES.values() for question in [q for q in found if q.category == kind][:PER_KIND]
    ]


def prompts() -> list[UserTurn]:
    """The same as prompts to answer, the first turn of each."""
    return [UserTurn(question.question_id, question.category, question.turns[0]) for question in measured()]


def main(arguments: Sequence[str] | None = None) -> int:
    """Choose and write; returns the exit status. ValueError as `prompts.read`; KeyError for one without a source."""
    parser = argparse.ArgumentParser(prog="python -m lessons_lib.training.held_out")
    parser.add_argument("--prompts", type=Path, required=True, help="JSON lines with id, kind, prompt, context, source")
    parser.add_argument("--into", type=Path, default=HELD_OUT)
    options, target = parser.parse_args(arguments), load(device="cpu").target()
    chosen = choose(read(options.prompts), lambda prompt: len(encode(target, prompt.messages)))
    sources = {line["id"]: line["source"] for line in map(json.loads, options.prompts.open(encoding="utf-8"))}
    lines = [json.dumps(row(prompt, sources[prompt.key]), ensure_ascii=False) for prompt in chosen]
    options.into.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{len(chosen)} prompts in {options.into}")
    return 0


def choose(prompts: Sequence[UserTurn], tokens: Callable[[UserTurn], int]) -> list[UserTurn]:
    """Up to PER_KIND held-out prompts of every kind in CATEGORIES, spread evenly over those that are short enough.

    tokens(prompt) -> how many it has, the template's included.
    """
    found = []
    for kind in CATEGORIES:
        held_out = [prompt for prompt in prompts if prompt.held_out and prompt.kind == kind]
        fit = [prompt for prompt in held_out if tokens(prompt) <= LONGER.get(kind, LONGEST)]
        count = min(PER_KIND, len(fit))
        found += [fit[i * len(fit) // count] for i in range(count)]
    return found


def row(prompt: UserTurn, source: str) -> dict:
    """One line of the file; KeyError for a kind that is not in CATEGORIES."""
    category = CATEGORIES[prompt.kind]
    return {"question_id": prompt.key, "category": category, "turns": [prompt.text], "source": source}


if __name__ == "__main__":
    sys.exit(main())
