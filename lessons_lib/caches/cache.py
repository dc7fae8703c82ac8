"""What every cache is asked (lesson 02): how long it is, where the next tokens stand, which entries stay.

One that our decoder reads has an `append`, too (`models.decoder.KeysAndValues`).
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence


class Cache(ABC):
    """Keys and values of one sequence. most: entries it can hold, None for as many as there is memory for."""

    most: int | None = None

    @abstractmethod
    def length(self, layer: int = -1) -> int:
        """Entries kept in a layer; without one, in the last layer (a partial forward leaves it behind)."""

    @abstractmethod
    def keep(self, prefix: int, then: Sequence[int] = ()) -> None:
        """Keep the first `prefix` entries, then those numbered `then` (ascending); the rest leaves no trace.

        ValueError, where a cache can tell, for entries that it does not have.
        """

    def branches(self, entries: int) -> bool:
        """Whether branches and side tokens may be fed until it has so many entries; if not, chains only."""
        return True

    def positions(self, offsets: Sequence[int]) -> list[int]:
        """Positions of tokens about to be fed, offset 0 being the first one the cache lacks."""
        return [self.length() + offset for offset in offsets]


class CountedCache(Cache):
    """A cache that counts the entries of every layer, as a forward fills one layer after another."""

    def __init__(self, layers: int, length: int = 0):
        """length: entries that every layer has already."""
        self._lengths = [length] * layers

    def length(self, layer: int = -1) -> int:
        return self._lengths[layer]

    def advance(self, count: int) -> None:
        """Count `count` entries, written to its buffers or blocks by a compiled step, as present in all layers."""
        self._lengths = [self.length() + count] * len(self._lengths)


def unbroken(prefix: int, then: Sequence[int]) -> bool:
    """Whether entries numbered `then` follow the first `prefix` ones without a gap: keeping them moves nothing."""
    return not then or list(then) == list(range(prefix, prefix + len(then)))
