"""The block pool (lesson 05): allocates KV cache blocks to sequences and shares equal prefixes (prefix caching).

A sequence's block table lists its blocks in order. The key of a full block is a hash of its tokens and of all tokens
before them, so another sequence with the same prefix finds the block and shares it. A released block keeps its content
until the space is needed; the least recently used one is evicted first (LRU).
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterator
from hashlib import blake2b

from lessons_lib.caches.sizes import blocks_for
from lessons_lib.decoding.sequence import Sequence


class BlockPool:
    """`num_blocks` blocks of `block_size` tokens for any number of sequences (vLLM: KVCacheManager and its BlockPool).

    enable_prefix_caching: whether sequences with ids share the blocks of an equal prefix. copies: pairs (from, to) of
    blocks that the backend must copy before the next forward pass; it then clears the list.
    """

    def __init__(self, num_blocks: int, block_size: int = 16, enable_prefix_caching: bool = True):
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"A pool needs blocks of tokens; {num_blocks} of {block_size} were asked for.")
        self.num_blocks, self.block_size, self.enable_prefix_caching = num_blocks, block_size, enable_prefix_caching
        self.shared: dict[int, int] = {}  # block -> block tables that list it, where there are two or more
        self.copies: list[tuple[int, int]] = []
        self.owner_mark: object | None = None  # see `attach`
        self._touched = 0  # blocks from this one on have never been used
        self._empty: list[int] = []  # used before, not in the prefix cache
        self._idle: OrderedDict[int, None] = OrderedDict()  # without an owner, in the prefix cache; LRU order
        self._found: dict[bytes, int] = {}  # the prefix cache: hash -> block
        self._hash: dict[int, bytes] = {}  # its inverse: block -> hash

    @property
    def free_blocks(self) -> int:
        """Blocks that can be allocated, including cached prefixes that no sequence uses."""
        return self.num_blocks - self._touched + len(self._empty) + len(self._idle)

    def attach(self, memory) -> None:
        """Use this memory's blocks from now on; called before each run. No sequence may own blocks then.

        Pool and memory get the same mark. If it differs at the next run, another pool has overwritten blocks of this
        memory, or this pool's blocks lie in another one: the prefix cache is cleared.
        """
        if self.owner_mark is None or self.owner_mark is not memory.owner_mark:
            self.clear()
            self.owner_mark = memory.owner_mark = object()

    def match(self, seq: Sequence) -> int:
        """Look up a sequence's longest cached prefix and share its blocks (vLLM: get_computed_blocks) -> cached tokens.

        At least one token of the sequence stays uncomputed, because we need its logits to pick the next token.
        """
        if seq.ids is None or not self.enable_prefix_caching:
            return 0
        for key in hash_chain(seq.ids[: seq.num_tokens - 1], self.block_size):
            if key not in self._found:
                break
            seq.block_table.append(self._share(self._found[key]))
            seq.block_hashes.append(key)
        return len(seq.block_table) * self.block_size

    def allocate(self, seq: Sequence, tokens: int, spare: int = 0) -> bool:
        """Allocate blocks for the sequence's first `tokens` tokens (vLLM: allocate_slots) -> whether there was room.

        All or nothing: without room, or if fewer than `spare` blocks would stay free, nothing changes. Blocks that the
        sequence will write to become its own alone.
        """
        table = seq.block_table
        written = range(seq.num_computed_tokens // self.block_size, len(table))
        shared = [i for i in written if table[i] in self.shared] if self.shared else []
        missing = max(0, blocks_for(tokens, self.block_size) - len(table))
        if missing + len(shared) > max(0, self.free_blocks - spare):
            return False
        # copy-on-write: replace each shared block by a block of its own. Only after a `fork`, a seam for beam search:
        # prefix caching shares full blocks, which nobody writes
        for i in shared:
            old, table[i] = table[i], self._take()
            self._drop(old)
            if i * self.block_size < seq.num_computed_tokens:  # the block holds computed tokens
                self.copies.append((old, table[i]))
        table.extend([self._take() for _ in range(missing)])
        return True

    def store(self, seq: Sequence) -> None:
        """Add the sequence's newly filled blocks to the prefix cache, after each forward pass (vLLM: cache_blocks)."""
        first = len(seq.block_hashes)
        if not self.enable_prefix_caching or seq.num_computed_tokens // self.block_size <= first:
            return
        fresh = seq.ids[first * self.block_size : seq.num_computed_tokens]
        for i, key in enumerate(hash_chain(fresh, self.block_size, *seq.block_hashes[-1:]), first):
            seq.block_hashes.append(key)
            if key not in self._found:  # else another sequence computed an equal block at the same time
                self._found[key], self._hash[seq.block_table[i]] = seq.block_table[i], key

    def truncate(self, seq: Sequence, tokens: int) -> None:
        """Free the blocks beyond the first `tokens` tokens, after draft tokens were rejected.

        None of them is in the prefix cache: it has only blocks full of computed tokens, which a sequence keeps.
        """
        needed = blocks_for(tokens, self.block_size)
        while len(seq.block_table) > needed:
            self._drop(seq.block_table.pop())

    def fork(self, seq: Sequence, child: Sequence) -> None:
        """Let `child` share all blocks of a sequence. The first to write copies the partly filled last block.

        For several continuations of one text, as in parallel sampling and beam search. The scheduler uses neither.
        """
        child.block_table = [self._share(block) for block in seq.block_table]
        child.block_hashes = list(seq.block_hashes)

    def release(self, seq: Sequence) -> None:
        """Free all blocks of the sequence (vLLM: free), last block first: the start of the text is evicted last."""
        for block in reversed(seq.block_table):
            self._drop(block)
        seq.block_table, seq.block_hashes = [], []

    def clear(self) -> None:
        """Empty the prefix cache. No sequence may own blocks."""
        if self.free_blocks < self.num_blocks:
            owned = self.num_blocks - self.free_blocks
            raise ValueError(f"requests own {owned} blocks of this pool; give each engine a pool of its own")
        self._empty += self._idle
        for known in (self._idle, self._found, self._hash, self.copies):
            known.clear()

    def _take(self) -> int:
        """Take a free block. If only cached prefixes are left, evict the least recently used one."""
        if self._empty:
            return self._empty.pop()
        if self._touched < self.num_blocks:
            self._touched += 1
            return self._touched - 1
        block, _ = self._idle.popitem(last=False)
        del self._found[self._hash.pop(block)]
        return block

    def _share(self, block: int) -> int:
        if block in self._idle:
            del self._idle[block]
        else:
            self.shared[block] = self.shared.get(block, 1) + 1
        return block

    def _drop(self, block: int) -> None:
        """Remove one reference to the block; without references it is free or stays in the prefix cache."""
        if block in self.shared:
            self.shared[block] -= 1
            if self.shared[block] == 1:
                del self.shared[block]
        elif block in self._hash:
            self._idle[block] = None
        else:
            self._empty.append(block)


def hash_chain(ids: list[int], block_size: int, before: bytes = b"") -> Iterator[bytes]:
    """A 16-byte hash for each full block of ids, over its tokens and the hash of the block before it."""
    for start in range(0, len(ids) - block_size + 1, block_size):
        before = blake2b(array("q", ids[start : start + block_size]).tobytes(), key=before, digest_size=16).digest()
        yield before
