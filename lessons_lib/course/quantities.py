"""One quantity has one value: named results of a lesson, which a second cell cannot state differently."""

from typing import Any

from lessons_lib.progress import batch

__all__ = ["Quantities"]


class Quantities(dict):
    """A dict of a lesson's results by name. Where a program executes the lesson, a second value of a name is an error.

    Text, tables, figures and scorecard take the value from here, so they cannot disagree. In a live session a cell may
    be run again, and its new value replaces the old one.
    """

    def __setitem__(self, name: str, value: Any) -> None:
        if batch() and name in self and self[name] != value:
            raise ValueError(
                f"{name!r} is already {self[name]!r}; read that instead of measuring it again ({value!r})."
            )
        super().__setitem__(name, value)
