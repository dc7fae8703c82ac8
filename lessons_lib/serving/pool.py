"""What a scheduler asks of a block pool, and the simplest pool that answers: one that only counts (lesson 05)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from lessons_lib.caches.sizes import blocks_for
from lessons_lib.serving.request import Request


class Memory(Protocol):
    """What holds the keys and values of a pool's blocks.

    owner_mark: a new object of the pool that began to use this memory last, which the pool keeps, too. While both have
    the same mark, the blocks hold what the pool knows of them; with another one a second pool, or a second memory, came
    in between.
    """

    owner_mark: object | None


class Pool(Protocol):
    """What a scheduler asks of a block pool. CountingPool has it, and block_pool.BlockPool, which shares prefixes."""

    num_blocks: int
    block_size: int  # tokens per block

    @property
    def free_blocks(self) -> int:
        """Blocks that could be handed out now, cached prefixes that nobody uses included."""

    def attach(self, memory: Memory) -> None:
        """Told before each run which memory the blocks lie in: prefixes that lie elsewhere must not be found."""

    def match(self, request: Request) -> int:
        """Give a request without blocks those that already hold the start of its ids -> how many tokens they hold.

        Always fewer than request.known, since at least one token must be computed; 0 without a prefix cache.
        """

    def allocate(self, request: Request, tokens: int, spare: int = 0) -> bool:
        """See that the request owns blocks for its first `tokens` tokens (keeping those it has); all or nothing.

        False, and nothing changed, if there are too few, or fewer than `spare` would stay free.
        """

    def store(self, request: Request) -> None:
        """Told after each forward: the first request.computed of request.ids are cached, full blocks may be shared."""

    def truncate(self, request: Request, tokens: int) -> None:
        """Keep only the blocks that the first `tokens` tokens need: after guesses that were rejected."""

    def release(self, request: Request) -> None:
        """Take back all blocks of the request, if it has any; full ones may stay as a cached prefix."""


def check_size(num_blocks: int, block_size: int) -> None:
    """ValueError for a pool without blocks, or blocks without room."""
    if num_blocks < 1 or block_size < 1:
        raise ValueError(f"A pool needs blocks of tokens; {num_blocks} of {block_size} were asked for.")


@dataclass
class CountingPool:
    """Counts blocks and shares none: enough where no prefix is shared. Methods as Pool's.

    ValueError for a pool without blocks, or blocks without room.
    """

    num_blocks: int
    block_size: int = 16

    owned: dict[Request, int] = field(default_factory=dict, init=False)  # blocks of each
    free_blocks: int = field(init=False)

    def __post_init__(self) -> None:
        check_size(self.num_blocks, self.block_size)
        self.free_blocks = self.num_blocks

    def attach(self, memory: Memory) -> None:
        """Nothing: no prefix is kept."""

    def match(self, request: Request) -> int:
        """0 tokens: no prefix is kept."""
        return 0

    def allocate(self, request: Request, tokens: int, spare: int = 0) -> bool:
        """Count the blocks of `tokens` tokens as the request's; False, and nothing changed, without so many."""
        owned = self.owned.get(request, 0)
        more = blocks_for(tokens, self.block_size) - owned
        if more > 0:
            if more > self.free_blocks - spare:
                return False
            self.free_blocks -= more
            self.owned[request] = owned + more
        return True

    def store(self, request: Request) -> None:
        """Nothing: no prefix is kept."""

    def truncate(self, request: Request, tokens: int) -> None:
        """Count blocks behind the first `tokens` tokens as free; KeyError for a request that has none."""
        spare = max(0, self.owned[request] - blocks_for(tokens, self.block_size))
        self.owned[request] -= spare
        self.free_blocks += spare

    def release(self, request: Request) -> None:
        """Count all its blocks as free, if it has any."""
        self.free_blocks += self.owned.pop(request, 0)
