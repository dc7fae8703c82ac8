"""The prompts that the target answers (lessons 06, 09): from a file, from our own templates, and the held-out ones.

A prompts file holds one JSON object per line: {"id", "kind", "prompt", "context"}. Every tenth id is held out: it
evaluates drafts and heads and never trains them.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from itertools import chain, product, zip_longest
from pathlib import Path

from lessons_lib.data import HELD_OUT, Question, numbered_lines, questions

EVERY = 10  # ids divisible by this are held out
LONGEST = 320  # maximum tokens of a prompt, template included
LONGEST_HELD_OUT = 700  # there some have a passage to answer from
CATEGORIES = ("chat", "qa", "summarization", "code", "math")  # that drafts and heads are measured on
PER_KIND = 12  # held-out questions
FORMS = {
    "qa": ("What is meant by {}?", "Why does {} matter?", "How did {} change over time?"),
    "list": ("List five facts about {}.", "Give me seven tips about {}.", "Name the pros and cons of {}."),
    "dialogue": ("Write a dialogue between two friends about {}.", "Interview an expert on {}."),
    "chat": (
        "Explain {} to a child.",
        "I want to learn about {}. Where should I start?",
        "Write a short story about {}.",
        "Write an email to a colleague about {}.",
        "Tell me something surprising about {}.",
    ),
}
TOPICS = """gardening, solar power, the Roman Empire, public libraries, sleep, bread baking, chess, glaciers, electric
cars, the human heart, budgeting, jazz, vaccines, volcanoes, remote work, photography, coral reefs, inflation,
bicycles, the printing press, yoga, black holes, tea, recycling, job interviews, dinosaurs, time management,
bridges, honey bees, the French Revolution, meditation, computer networks, the water cycle, running a
marathon, poetry, earthquakes, small businesses, friendship, the Silk Road, robots, nutrition, migration of
birds, databases, first aid, ancient Egypt, weather forecasts, learning a language, cheese, mountains,
theatre, online safety, antibiotics, space travel, houseplants, the stock market, cats, public speaking,
rivers, algebra, furniture, the Moon, olive oil, team sports, museums, batteries, wolves, urban planning,
handwriting, film music, airports, clean water, stress, maps, pottery, democracy, camping, steel, the immune
system, video games, rice"""
ASKED_AGAIN = {
    "summary": (
        "Summarize the passage in three sentences.",
        "What are the main points of this text?",
        "Write a headline and two sentences on this text.",
        "Explain this text to a ten-year-old.",
    ),
    "qa": (
        "Who or what is this paragraph about, and what happened?",
        "Name three facts that this text states.",
        "What does this text say? Answer in your own words.",
        "List the names and numbers in this text.",
    ),
}


@dataclass(frozen=True)
class UserTurn:
    """One user turn.

    key: unique within its source: the id, or a string for our own prompts. context: the passage or code that the prompt
    is about.
    """

    key: int | str
    kind: str
    text: str
    context: str = ""

    @property
    def held_out(self) -> bool:
        """Whether the prompt is for evaluation, and so must never be trained on."""
        return isinstance(self.key, int) and self.key % EVERY == 0

    @property
    def solves_held_out(self) -> bool:
        """Whether the code to edit solves a held-out task: a file lists such a prompt right after the task."""
        return self.kind == "code-edit" and isinstance(self.key, int) and (self.key - 1) % EVERY == 0

    @property
    def subject(self) -> str:
        """Equal for prompts with the same passage, and for a task and the code that solves it; "" if `source` tells."""
        if self.kind in ("code", "code-edit") and isinstance(self.key, int):
            return str(self.key - (self.kind == "code-edit"))  # the task's key
        return sha256(self.context.encode()).hexdigest() if self.context else ""

    @property
    def messages(self) -> list[dict[str, str]]:
        """The messages for `generate`."""
        return [{"role": "user", "content": self.text}]


def read(path: str | Path) -> list[UserTurn]:
    """Read a prompts file, with the context below the prompt. Raises ValueError that names the first invalid line."""
    found = []
    for number, line in numbered_lines(Path(path)):
        try:
            row = json.loads(line)
            text = "\n\n".join(part for part in (row["prompt"], row.get("context")) if part)
            found.append(UserTurn(int(row["id"]), row["kind"], text, row.get("context") or ""))
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"line {number} of {path} is no prompt with id, kind and prompt: {error}") from None
    return found


def for_training(prompts: Iterable[UserTurn]) -> list[UserTurn]:
    """Leave out held-out prompts, copies of them, and prompts that share their passage or edit their solution."""
    prompts = list(prompts)
    hidden = {text for prompt in prompts if prompt.held_out for text in (prompt.text, prompt.context) if text}
    hidden |= {prompt.context for prompt in prompts if prompt.solves_held_out and prompt.context}
    return [prompt for prompt in prompts if not prompt.held_out and not {prompt.text, prompt.context} & hidden]


def again(prompts: Iterable[UserTurn]) -> list[UserTurn]:
    """More tasks on the passages in a file's prompts. There are few passages, and more tasks teach copying better."""
    tasks = [(f"{kind}-again", task) for kind, several in ASKED_AGAIN.items() for task in several]
    passages = [prompt for prompt in prompts if prompt.kind in ASKED_AGAIN and prompt.context]
    return [
        UserTurn(f"{prompt.key}-{number}", kind, f"{task}\n\n{prompt.context}", prompt.context)
        for number, (kind, task) in enumerate(tasks)
        for prompt in passages
    ]


def own() -> list[UserTurn]:
    """Questions, lists and dialogues about everyday topics."""
    topics = [" ".join(topic.split()) for topic in TOPICS.split(",")]
    forms = [(kind, form) for kind, several in FORMS.items() for form in several]
    return [
        UserTurn(f"own-{kind}-{form}-{topic}", kind, form.format(topic))
        for topic, (kind, form) in product(topics, forms)
    ]


def measured() -> list[Question]:
    """The evaluation questions: PER_KIND of every kind; small kinds are filled up with our own."""
    found = [*questions(HELD_OUT), *questions()]
    return [question for kind in CATEGORIES for question in [q for q in found if q.category == kind][:PER_KIND]]


def held_out() -> list[UserTurn]:
    """The evaluation questions as prompts to answer, the first turn of each."""
    return [UserTurn(question.question_id, question.category, question.turns[0]) for question in measured()]


def source(key: str) -> str:
    """The subject of a text with this key (kind/key of the prompt): the prompt in the file, or the topic of our own."""
    name = key.partition("/")[2]
    return name.rpartition("-")[2] if name.startswith("own-") else name.partition("-")[0]


def interleave(prompts: Iterable[UserTurn]) -> list[UserTurn]:
    """Alternate between the kinds, so that any first part of the prompts is mixed."""
    kinds: dict[str, list[UserTurn]] = {}
    for prompt in prompts:
        kinds.setdefault(prompt.kind, []).append(prompt)
    return [prompt for prompt in chain(*zip_longest(*kinds.values())) if prompt is not None]
