"""Prompts and texts that lessons and benches use, as package data.

questions.jsonl: written for this project, in Spec-Bench's format, so that both files serve. Its categories:
"chat" (some of several turns), "summarization", "qa" and "code" (these three work on a passage or a program that the
prompt holds, most of them so that much of it comes back in the answer), "math", "writing" (free) and "lists".

held_out.jsonl: prompts of other people's that no draft of ours is trained on, each with its source; NOTICE has their
licences; up to twelve of a kind. Categories: "chat", "qa", "summarization", "code", "math".

wikitext2_evaluation.txt, wikitext2_calibration.txt: whole articles of WikiText-2's test split, detokenised, to measure
quality on and to calibrate with (lesson 10). No model here was trained on them, and no article is in both.

results: what `make bench` recorded, which lessons show beside their own runs; a link to the checkout's bench/results,
of which a package carries the files.
"""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

QUESTIONS = Path(__file__).with_name("questions.jsonl")
HELD_OUT = Path(__file__).with_name("held_out.jsonl")
TEXTS = ("evaluation", "calibration")
CHECKOUT = Path(__file__).parents[2] / "bench" / "results"
# a link in git is a plain file where a system makes none, as Windows by default: the checkout's own folder goes first
RESULTS = CHECKOUT if CHECKOUT.is_dir() else Path(__file__).with_name("results")
FORM = '{"question_id": 1, "category": "math", "turns": ["..."]}'


@dataclass(frozen=True)
class Question:
    """One conversation: the user's turns, each asked after the answer to the one before; else ValueError."""

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
        """The first turn as `generate` takes it."""
        return [{"role": "user", "content": self.turns[0]}]


def questions(path: str | Path | None = None) -> list[Question]:
    """The questions of a file in Spec-Bench's format, one JSON object a line; without path our own.

    Further keys, such as Spec-Bench's "reference", are ignored. Raises ValueError naming the line that is no
    question, or the question_id that comes twice, or the file if nothing is in it. Format: Xia et al. 2024 (arXiv
    2401.07851).
    """
    path = Path(path or QUESTIONS)
    found = [_read(line, f"line {number} of {path}") for number, line in numbered_lines(path)]
    if not found:
        raise ValueError(f"{path} holds no question; write one a line: {FORM}")
    twice = [number for number, count in Counter(question.question_id for question in found).items() if count > 1]
    if twice:
        raise ValueError(f"question_id {twice[0]} comes twice in {path}; give every question its own")
    return found


def question(number: int) -> Question:
    """Ours of that question_id. ValueError for one that there is not."""
    found = [one for one in questions() if one.question_id == number]
    if not found:
        raise ValueError(f"there is no question {number}; lessons_lib.data.questions() lists them")
    return found[0]


def text(part: str = "evaluation") -> str:
    """Articles that people wrote: "evaluation" to measure quality on, "calibration" for what looks at inputs first.

    WikiText-2 (Merity et al. 2016, arXiv 1609.07843), detokenised, so that figures are not those of papers on its
    raw form. "<unk>" stands for a rare word, as in the original. ValueError for another part.
    """
    if part not in TEXTS:
        raise ValueError(f"there is no text {part!r}; choose one of {', '.join(TEXTS)}")
    return Path(__file__).with_name(f"wikitext2_{part}.txt").read_text(encoding="utf-8")


def numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """(number, line) of the lines of a file that hold something."""
    lines = path.read_text(encoding="utf-8").split("\n")  # splitlines cuts at more than line ends
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
