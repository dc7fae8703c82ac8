"""Prompts and texts for lessons and benches, as package data.

questions.jsonl: written for this project, in Spec-Bench's format, so that both files can be used. Categories: "chat"
(some with several turns), "summarization", "qa" and "code" (these three work on a passage or a program in the prompt,
and much of it usually reappears in the answer), "math", "writing" (free) and "lists".

held_out.jsonl: third-party prompts that none of our drafts is trained on, each with its source; licences in NOTICE; up
to twelve of a kind. Categories: "chat", "qa", "summarization", "code", "math".

wikitext2_evaluation.txt, wikitext2_calibration.txt: whole articles of WikiText-2's test split, detokenised, for
measuring quality and for calibration (lesson 10). No model here was trained on them, and no article is in both.

shakespeare.txt: the first lines of "tiny Shakespeare", one long text for caches that evict (lesson 16).

results: recordings of `make bench`, which lessons show beside their own runs; a link to the clone's bench/results,
whose files the package contains.
"""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

QUESTIONS = Path(__file__).with_name("questions.jsonl")
HELD_OUT = Path(__file__).with_name("held_out.jsonl")
TEXTS = {
    "evaluation": "wikitext2_evaluation.txt",
    "calibration": "wikitext2_calibration.txt",
    "shakespeare": "shakespeare.txt",
}
CHECKOUT = Path(__file__).parents[2] / "bench" / "results"
# systems without symbolic links (Windows by default) store a link as a plain file, so the clone's own folder goes first
RESULTS = CHECKOUT if CHECKOUT.is_dir() else Path(__file__).with_name("results")
FORM = '{"question_id": 1, "category": "math", "turns": ["..."]}'


@dataclass(frozen=True)
class Question:
    """One conversation: the user's turns, each asked after the answer to the previous one."""

    question_id: int
    category: str
    turns: tuple[str, ...]

    def __post_init__(self):
        if isinstance(self.question_id, bool) or not isinstance(self.question_id, int):
            raise ValueError(f"question_id is no whole number but {self.question_id!r}")
        if not isinstance(self.category, str) or not self.category:
            raise ValueError(f"category is no text but {self.category!r}")
        if not self.turns or not all(isinstance(turn, str) and turn.strip() for turn in self.turns):
            raise ValueError("turns is no list of texts, or one of them is empty")

    @property
    def messages(self) -> list[dict[str, str]]:
        """The first turn as messages for `generate`."""
        return [{"role": "user", "content": self.turns[0]}]


def questions(path: str | Path | None = None) -> list[Question]:
    """Read questions in Spec-Bench's format, one JSON object per line; default: our own.

    Further keys, such as Spec-Bench's "reference", are ignored. Raises ValueError that names an invalid line, a
    repeated question_id, or an empty file. Format: Xia et al. 2024 (arXiv 2401.07851).
    """
    path = Path(path or QUESTIONS)
    found = [_read(line, f"line {number} of {path}") for number, line in numbered_lines(path)]
    if not found:
        raise ValueError(f"{path} holds no question; write one a line: {FORM}")
    twice = [number for number, count in Counter(question.question_id for question in found).items() if count > 1]
    if twice:
        raise ValueError(f"question_id {twice[0]} comes twice in {path}; give every question its own")
    return found


def prompts(path: str | Path) -> list[Question]:
    """Read a file of prompts: one on each line, or a JSON value on each line -> questions, numbered from 1.

    A JSON line is a text, an object with a text "prompt" and perhaps a "category", or a question in Spec-Bench's
    format. Lines of text, and objects without a category, are of the category "text". Raises ValueError that names an
    invalid line, or an empty file.
    """
    lines = list(numbered_lines(Path(path)))
    if not lines:
        raise ValueError(f"{path} holds no prompt; write one on each line")
    if not lines[0][1].lstrip().startswith(("{", '"')):
        return [Question(count, "text", (line.strip(),)) for count, (_, line) in enumerate(lines, 1)]
    return [_prompt(count, line, f"line {number} of {path}") for count, (number, line) in enumerate(lines, 1)]


def _prompt(count: int, line: str, where: str) -> Question:
    try:
        row = json.loads(line)
        if isinstance(row, str):
            return Question(count, "text", (row,))
        if "prompt" in row:
            return Question(count, row.get("category", "text"), (row["prompt"],))
    except (TypeError, ValueError) as error:
        form = '"...", {"prompt": "..."} or ' + FORM
        raise ValueError(f"{where} is no prompt ({error}); write it like {form}") from None
    return replace(_read(line, where), question_id=count)


def question(number: int) -> Question:
    """Our question with this question_id."""
    found = [one for one in questions() if one.question_id == number]
    if not found:
        raise ValueError(f"there is no question {number}; lessons_lib.data.questions() lists them")
    return found[0]


def text(part: str = "evaluation") -> str:
    """A shipped text: "evaluation", "calibration" or "shakespeare".

    The first two are articles of WikiText-2, for measuring quality and for methods that look at inputs first: Merity
    et al. 2016 (arXiv 1609.07843), detokenised, so perplexities are not comparable with papers on the raw form. "<unk>"
    stands for a rare word, as in the original. "shakespeare" is the start of "tiny Shakespeare" (Karpathy, char-rnn).
    """
    if part not in TEXTS:
        raise ValueError(f"there is no text {part!r}; choose one of {', '.join(TEXTS)}")
    return Path(__file__).with_name(TEXTS[part]).read_text(encoding="utf-8")


def numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """(number, line) of the non-empty lines of a file in UTF-8, without the mark (BOM) that may begin it."""
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")  # splitlines splits at more than newlines
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not in UTF-8 ({error}); save it as UTF-8") from None
    return ((number, line) for number, line in enumerate(lines, 1) if line.strip())


def _read(line: str, where: str) -> Question:
    try:
        row = json.loads(line)
        turns = row["turns"]
        return Question(row["question_id"], row["category"], tuple(turns) if isinstance(turns, list) else ())
    except KeyError as error:
        raise ValueError(f"{where} lacks {error}; write it like {FORM}") from None
    except (TypeError, ValueError) as error:
        raise ValueError(f"{where} is no question ({error}); write it like {FORM}") from None
