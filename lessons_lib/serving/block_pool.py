"""The block pool (lesson 05): which KV cache blocks are free, who owns the others, and which prefixes are shared.

A sequence's block table lists its blocks in order. A full block is known by a hash of its tokens and of all that come
before them, so another sequence with the same beginning finds it and shares it. A block that nobody owns any more keeps
its content until its room is needed, the one unused for longest first.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterator
from hashlib import blake2b
from typing import Protocol

from lessons_lib.caches.sizes import blocks_for
from lessons_lib.decoding.sequence import Sequence


class Memory(Protocol):
    """Where the keys and values of a pool's blocks lie.

    owner_mark: set by the pool that used this memory last, which keeps the same object. While both marks are one
    object, the blocks hold what the pool knows about them. Otherwise a second pool or a second memory came in between.
    """

    owner_mark: object | None


class BlockPool:
    """`num_blocks` blocks of `block_size` tokens for any number of sequences.

    sharing: whether sequences with ids share the blocks of an equal beginning. copies: (from, to) blocks to copy before
    the next forward pass writes; whoever runs it clears the list. ValueError for a pool without blocks or tokens.
    """

    def __init__(self, num_blocks: int, block_size: int = 16, sharing: bool = True):
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"A pool needs blocks of tokens; {num_blocks} of {block_size} were asked for.")
        self.num_blocks, self.block_size, self.sharing = num_blocks, block_size, sharing
        self.shared: dict[int, int] = {}  # block -> block tables that list it, where there are two or more
        self.copies: list[tuple[int, int]] = []
        self.owner_mark: object | None = None  # see Memory
        self._touched = 0  # blocks from this one on have never been used
        self._empty: list[int] = []  # used before, without a known content
        self._idle: OrderedDict[int, None] = OrderedDict()  # unused, but findable; the longest unused first
        self._found: dict[bytes, int] = {}
        self._hash: dict[int, bytes] = {}  # of the blocks that can be found

    @property
    def free_blocks(self) -> int:
        """Blocks that can be handed out, cached prefixes that nobody uses included."""
        return self.num_blocks - self._touched + len(self._empty) + len(self._idle)

    def attach(self, memory: Memory) -> None:
        """Use this memory's blocks from now on; called before each run.

        Prefixes that lie in another memory, or that another pool overwrote, are forgotten. ValueError while sequences
        own blocks.
        """
        if self.owner_mark is None or self.owner_mark is not memory.owner_mark:
            self.clear()
            self.owner_mark = memory.owner_mark = object()

    def match(self, seq: Sequence) -> int:
        """Give a sequence without blocks those that hold the start of its ids -> how many tokens they hold.

        Fewer than all: at least one token must be fed to get the next one.
        """
        if seq.ids is None or not self.sharing:
            return 0
        for key in hash_chain(seq.ids[: seq.num_tokens - 1], self.block_size):
            if key not in self._found:
                break
            seq.block_table.append(self._share(self._found[key]))
            seq.block_hashes.append(key)
        return len(seq.block_table) * self.block_size

    def allocate(self, seq: Sequence, tokens: int, spare: int = 0) -> bool:
        """Make the sequence own blocks for its first `tokens` tokens, alone those that it will write to.

        All or nothing: False if there are too few, or if fewer than `spare` would stay free.
        """
        table = seq.block_table
        written = range(seq.num_computed_tokens // self.block_size, len(table))
        shared = [i for i in written if table[i] in self.shared] if self.shared else []
        missing = max(0, blocks_for(tokens, self.block_size) - len(table))
        if missing + len(shared) > max(0, self.free_blocks - spare):
            return False
        for i in shared:  # copy on write
            old, table[i] = table[i], self._take()
            self._drop(old)
            if i * self.block_size < seq.num_computed_tokens:  # some of its content is kept
                self.copies.append((old, table[i]))
        if self._found:
            for i in written:
                self._forget(table[i])
        table.extend([self._take() for _ in range(missing)])
        return True

    def store(self, seq: Sequence) -> None:
        """Make the full blocks of the computed tokens findable; called after each forward pass."""
        first = len(seq.block_hashes)
        if not self.sharing or seq.num_computed_tokens // self.block_size <= first:
            return
        fresh = seq.ids[first * self.block_size : seq.num_computed_tokens]
        for i, key in enumerate(hash_chain(fresh, self.block_size, *seq.block_hashes[-1:]), first):
            seq.block_hashes.append(key)
            if key not in self._found:  # else another sequence computed the same at the same time: one is enough
                self._found[key], self._hash[seq.block_table[i]] = seq.block_table[i], key

    def truncate(self, seq: Sequence, tokens: int) -> None:
        """Keep only the blocks that the first `tokens` tokens need: after draft tokens were rejected."""
        needed = blocks_for(tokens, self.block_size)
        while len(seq.block_table) > needed:
            self._drop(seq.block_table.pop())
        del seq.block_hashes[tokens // self.block_size :]

    def fork(self, seq: Sequence, child: Sequence) -> None:
        """Let `child` share all blocks of a sequence; the first of them to write copies the last, half-filled block.

        For continuing one text in several ways, as parallel sampling and beam search do. The scheduler does neither.
        """
        child.block_table = [self._share(block) for block in seq.block_table]
        child.block_hashes = list(seq.block_hashes)

    def release(self, seq: Sequence) -> None:
        """Take back all blocks of the sequence. The end of its text is forgotten first, its beginning last."""
        if self.shared or self._found:
            for block in reversed(seq.block_table):
                self._drop(block)
        else:
            self._empty.extend(reversed(seq.block_table))
        seq.block_table, seq.block_hashes = [], []

    def clear(self) -> None:
        """Forget every prefix. ValueError while sequences own blocks."""
        if self.free_blocks < self.num_blocks:
            owned = self.num_blocks - self.free_blocks
            raise ValueError(f"requests own {owned} blocks of this pool; give each engine a pool of its own")
        self._empty += self._idle
        for known in (self._idle, self._found, self._hash, self.copies):
            known.clear()

    def _take(self) -> int:
        """An unused block, at the cost of the prefix unused for longest if no other is left."""
        if self._empty:
            block = self._empty.pop()
        elif self._touched < self.num_blocks:
            block, self._touched = self._touched, self._touched + 1
        else:
            block = self._idle.popitem(last=False)[0]
            self._forget(block)
        return block

    def _share(self, block: int) -> int:
        if block in self._idle:
            del self._idle[block]
        else:
            self.shared[block] = self.shared.get(block, 1) + 1
        return block

    def _drop(self, block: int) -> None:
        """Take the block out of one block table."""
        if block in self.shared:
            self.shared[block] -= 1
            if self.shared[block] == 1:
                del self.shared[block]
        elif block in self._hash:
            self._idle[block] = None
        else:
            self._empty.append(block)

    def _forget(self, block: int) -> None:
        """A block whose content is about to change cannot be found any more."""
        if (key := self._hash.pop(block, None)) is not None:
            del self._found[key]


def hash_chain(ids: list[int], block_size: int, before: bytes = b"") -> Iterator[bytes]:
    """A hash of 16 bytes for each full block of ids, over its tokens and the hash of what comes before it."""
    for start in range(0, len(ids) - block_size + 1, block_size):
        before = blake2b(array("q", ids[start : start + block_size]).tobytes(), key=before, digest_size=16).digest()
        yield before
