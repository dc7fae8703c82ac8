"""The block pool (lesson 05): which cache blocks are free, who holds the others, and prefixes that requests share."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
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


@dataclass
class BlockTable:
    """A request's blocks in order, and the hashes (16 bytes each) of those that are full and known to the pool."""

    blocks: list[int] = field(default_factory=list)
    hashes: list[bytes] = field(default_factory=list)


class BlockPool:
    """Blocks for any number of requests. sharing: whether requests may share the blocks of an equal beginning.

    Only requests with ids share. copies: (from, to) blocks whose content must be copied before the next forward writes;
    whoever runs the forward clears the list. ValueError for a pool without blocks, or blocks without room.
    """

    def __init__(self, num_blocks: int, block_size: int = 16, sharing: bool = True):
        check_size(num_blocks, block_size)
        self.num_blocks, self.block_size, self.sharing = num_blocks, block_size, sharing
        self.tables: dict[Request, BlockTable] = {}
        self.references = [0] * num_blocks  # tables that list the block
        self.copies: list[tuple[int, int]] = []
        self.owner_mark: object | None = None  # see pool.Memory
        self._empty = list(reversed(range(num_blocks)))  # unused, without a known content
        self._idle: OrderedDict[int, None] = OrderedDict()  # unused, but findable; the longest unused first
        self._found: dict[bytes, int] = {}
        self._hash: dict[int, bytes] = {}  # of the blocks that can be found

    @property
    def free_blocks(self) -> int:
        """Blocks that can be handed out, cached prefixes that nobody uses included."""
        return len(self._empty) + len(self._idle)

    def attach(self, memory: Memory) -> None:
        """Hand out this memory's blocks from now on.

        Prefixes in another memory, or that another pool wrote over, are forgotten. ValueError while requests own some.
        """
        if self.owner_mark is None or self.owner_mark is not memory.owner_mark:
            self.clear()
            self.owner_mark = memory.owner_mark = object()

    def match(self, request: Request) -> int:
        """Give a request without blocks those that hold the start of its ids -> how many tokens they hold.

        Never all of them: at least one token must be fed to get a next one.
        """
        table = self.tables.setdefault(request, BlockTable())
        if request.ids is None or not self.sharing:
            return 0
        for key in hash_chain(request.ids[: request.known - 1], self.block_size):
            if key not in self._found:
                break
            table.blocks.append(self._share(self._found[key]))
            table.hashes.append(key)
        return len(table.blocks) * self.block_size

    def allocate(self, request: Request, tokens: int, spare: int = 0) -> bool:
        """See that the request owns blocks for its first `tokens` tokens, those it will write to alone.

        False, and nothing changed, if there are too few, or fewer than `spare` would stay free.
        """
        table = self.tables.setdefault(request, BlockTable())
        written = range(request.computed // self.block_size, len(table.blocks))
        shared = [i for i in written if self.references[table.blocks[i]] > 1]
        missing = blocks_for(tokens, self.block_size) - len(table.blocks)
        if max(missing, 0) + len(shared) > max(0, self.free_blocks - spare):
            return False
        for i in shared:
            self._replace(table, i, copied=i * self.block_size < request.computed)
        for i in written:
            self._forget(table.blocks[i])
        table.blocks += [self._take() for _ in range(missing)]
        return True

    def store(self, request: Request) -> None:
        """The first request.computed of request.ids are cached: make the full blocks among them findable.

        KeyError for a request that the pool does not know.
        """
        table = self.tables[request]
        if not self.sharing or request.computed // self.block_size <= len(table.hashes):
            return
        first = len(table.hashes)
        fresh = request.ids[first * self.block_size : request.computed]
        for i, key in enumerate(hash_chain(fresh, self.block_size, *table.hashes[-1:]), first):
            table.hashes.append(key)
            if key not in self._found:  # else somebody computed the same at the same time: theirs is enough
                self._found[key], self._hash[table.blocks[i]] = table.blocks[i], key

    def truncate(self, request: Request, tokens: int) -> None:
        """Keep only what the first `tokens` tokens need: after guesses that were rejected. KeyError as `store`."""
        table = self.tables[request]
        while len(table.blocks) * self.block_size >= tokens + self.block_size:
            self._drop(table.blocks.pop())
        del table.hashes[tokens // self.block_size :]

    def fork(self, request: Request, child: Request) -> None:
        """Let `child` share all blocks of a request; who writes first copies the last, half-filled one.

        For whoever continues one text in several ways: parallel sampling, beams. The scheduler does neither. KeyError
        as `store`.
        """
        table = self.tables[request]
        self.tables[child] = BlockTable([self._share(block) for block in table.blocks], list(table.hashes))

    def release(self, request: Request) -> None:
        """Take back all blocks of the request, if it has any; the end of its text is forgotten first."""
        for block in reversed(self.tables.pop(request, BlockTable()).blocks):
            self._drop(block)

    def clear(self) -> None:
        """Forget every prefix. ValueError while requests own blocks."""
        if self.tables:
            raise ValueError(f"{len(self.tables)} requests own blocks of this pool; give each engine a pool of its own")
        self._empty += self._idle
        for known in (self._idle, self._found, self._hash, self.copies):
            known.clear()

    def _take(self) -> int:
        """An unused block, at the cost of the prefix unused for longest if no other is left."""
        block = self._empty.pop() if self._empty else self._idle.popitem(last=False)[0]
        self._forget(block)
        self.references[block] = 1
        return block

    def _share(self, block: int) -> int:
        self._idle.pop(block, None)
        self.references[block] += 1
        return block

    def _drop(self, block: int) -> None:
        self.references[block] -= 1
        if self.references[block] == 0 and block in self._hash:
            self._idle[block] = None
        elif self.references[block] == 0:
            self._empty.append(block)

    def _replace(self, table: BlockTable, i: int, copied: bool) -> None:
        """Another block in place of one that others see, with the same content if some of it is kept."""
        old, table.blocks[i] = table.blocks[i], self._take()
        self._drop(old)
        if copied:
            self.copies.append((old, table.blocks[i]))

    def _forget(self, block: int) -> None:
        """A block whose content is about to change cannot be found any more."""
        if (key := self._hash.pop(block, None)) is not None:
            del self._found[key]


def hash_chain(ids: Sequence[int], block_size: int, before: bytes = b"") -> Iterator[bytes]:
    """A hash of 16 bytes for each full block of ids, over its tokens and the hash of what comes before it."""
    for start in range(0, len(ids) - block_size + 1, block_size):
        before = blake2b(array("q", ids[start : start + block_size]).tobytes(), key=before, digest_size=16).digest()
        yield before
