"""StreamingLLM (lesson 16): a KV cache that keeps the first and the newest tokens, so that a text never fills it.

It keeps the first tokens, the attention sinks, which softmax uses for the weight it has no other use for, and a window
of the newest tokens. Positions are places in the cache, not in the text, so they stay as small as the cache. A key's
place changes when a token before it is evicted. Three ways to handle that:

A  keys="unrotated": store keys before RoPE and rotate each one at its place in every forward pass. Exact.
B  keys="rotated": store rotated keys, and turn them back by the number of evicted tokens after each eviction. Rounding
   adds up, so in 16 bits many tokens have to be evicted at a time (`evict`, at least a 20th of the window).
C  positions="text": keep the positions of the text. A control: it works only up to the positions the model was trained
   on.

A pass over several tokens (a prompt, draft tokens) gives each token what it would see if they were fed one by one.
Evicted tokens are gone: the model cannot look further back than the cache.

Source: Xiao et al. 2023 (arXiv 2309.17453).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lessons_lib.attention.rotary import rotate
from lessons_lib.caches.cache import CacheFullError, CountedCache, is_contiguous

TURNS = 20  # of a key in 16 bits at most: after 20 turns keys are 3% off in bf16, after 1,020 turns 64%


@dataclass(frozen=True)
class Streaming:
    """Which tokens a StreamingCache keeps, and at which positions.

    sinks: first tokens that stay. window: newest tokens that stay. evict: tokens evicted at a time; after an eviction,
    the window holds up to evict - 1 tokens less.
    chunk: maximum number of tokens in one forward pass, by default 64 or the window. Longer prompts are fed in chunks.
    keys: "unrotated" (method A) or "rotated" (B). positions: "cache", or "text" for the control (C).
    ValueError for settings that cannot work.
    """

    sinks: int = 4
    window: int = 1020
    evict: int = 1
    chunk: int | None = None
    keys: str = "unrotated"
    positions: str = "cache"

    def __post_init__(self):
        if self.sinks < 0:
            raise ValueError(f"sinks={self.sinks} is negative; keep 0 or more first tokens")
        if self.window < 1:
            raise ValueError(f"window={self.window} keeps no token before the newest; choose at least 1")
        object.__setattr__(self, "chunk", min(64, self.window) if self.chunk is None else self.chunk)
        if not 1 <= self.chunk <= self.window:
            raise ValueError(
                f"a window of {self.window} tokens cannot take chunks of {self.chunk}; "
                "choose a chunk from 1 to the window"
            )
        if not 1 <= self.evict <= self.window:
            raise ValueError(f"evict={self.evict} must be from 1 to the window of {self.window} tokens")
        if self.keys not in ("unrotated", "rotated") or self.positions not in ("cache", "text"):
            raise ValueError(
                'keys are "unrotated" or "rotated" and positions "cache" or "text", '
                f"not {self.keys!r} and {self.positions!r}"
            )

    @property
    def capacity(self) -> int:
        """Tokens that stay in the cache: sinks + window."""
        return self.sinks + self.window

    def evicted(self, count: int) -> int:
        """Number of tokens evicted after `count` tokens of a text were processed. They followed the sinks."""
        excess = max(0, count - self.capacity)
        return -(-excess // self.evict) * self.evict

    def shift(self, count: int) -> int:
        """How far the positions of tokens after the sinks lie behind those in the text."""
        return self.evicted(count) if self.positions == "cache" else 0


class StreamingCache(CountedCache):
    """The sinks and the window of one sequence. Buffers (H_kv, slots, d) per layer never grow.

    Token t of the text is in slot t if it is a sink. The other slots are a ring, in which a new token overwrites the
    oldest one. The ring has `chunk` more slots than the window, so that rejected draft tokens never overwrite a token
    that is still needed.

    `length` counts the tokens of the text, evicted ones included, and `keep` takes their numbers.
    """

    def __init__(self, layers: int, kv_heads: int, head_dim: int, dtype, device, streaming: Streaming, tables):
        """tables: cos and sin (positions, d) of rotary embeddings. ValueError where rounding would spoil the keys."""
        super().__init__(layers)
        turns = math.ceil(streaming.window / streaming.evict)  # of a key, until it is evicted
        if streaming.keys == "rotated" and dtype.itemsize < 4 and turns > TURNS:
            raise ValueError(
                f"Every key would be turned {turns} times, and each turn rounds it to {str(dtype)[6:]}; choose "
                f'evict={math.ceil(streaming.window / TURNS)} or more, keys="unrotated", or a model in float32.'
            )
        self.streaming, self.tables = streaming, tables
        shape = kv_heads, streaming.capacity + streaming.chunk, head_dim
        self.keys = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(layers)]
        self.values = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(layers)]
        self.text = torch.zeros(shape[1], dtype=torch.long, device=device)  # position in the text of each slot's token
        self.turned = 0  # method B: the shift that the stored keys are rotated for
        self.furthest = 0  # tokens written so far, rejected ones included

    @property
    def slots(self) -> int:
        """Entries of every buffer."""
        return self.keys[0].shape[1]

    @property
    def most(self) -> int:
        """Entries after the next pass at most: it takes a chunk, so that draft tokens always have that much room."""
        return self.length() + self.streaming.chunk

    @property
    def nbytes(self) -> int:
        """Bytes allocated."""
        return sum(buffer.nbytes for buffer in self.keys + self.values)

    def held(self) -> list[int]:
        """The tokens in the cache, as numbers in the text: the sinks, then the window. The token's index is its place.

        With sinks=2 and window=3, after 8 tokens: [0, 1, 5, 6, 7].
        """
        first = min(self.streaming.sinks, self.length())
        return [*range(first), *range(first + self.streaming.evicted(self.length()), self.length())]

    def slots_of(self, tokens: Sequence[int]) -> Tensor:
        """Slots of tokens of the text."""
        sinks = self.streaming.sinks
        slots = [t if t < sinks else sinks + (t - sinks) % (self.slots - sinks) for t in tokens]
        return self._tensor(slots)

    def branches(self, entries: int) -> bool:
        """Branches need room for rejected nodes: a chunk."""
        return entries - self.length() <= self.streaming.chunk

    def begin(self, offsets: Sequence[int], mask: Tensor | None = None, fixed: bool = False) -> "StreamingPass":
        """Prepare a forward pass over T new tokens. Call `advance` after it.

        offsets (T,): positions relative to the first new token, which has the lowest. mask: (T, S + T) bool as in
        ModelInput, None for causal. fixed: read all slots even if some are empty, so that shapes depend on T alone.
        CacheFullError for more tokens than a chunk.
        """
        s, start, count = self.streaming, self.length(), len(offsets)
        if count > s.chunk:
            raise CacheFullError(f"{count} tokens do not fit a chunk of {s.chunk}; feed them in chunks, or set chunk=")
        new = self.slots_of(range(start, start + count))
        self.text[new] = start + self._tensor(offsets)
        self.furthest = max(self.furthest, start + count)
        # What is evicted before each new token, as if they were fed one by one, and how far that moves the others.
        evicted = self._tensor([s.evicted(start + offset) for offset in offsets])
        shifts = [s.shift(start + offset) for offset in offsets]
        if s.keys == "rotated":
            self._turn(shifts[0])
        if not fixed and evicted.max() == 0:  # as in a plain cache: slots, places and positions are the same
            return self._pass(new, slice(0, start + count), self.text[: start + count], mask)
        # 1. The token in each slot once the new ones are written: a sink, or the newest t with t = slot (mod ring).
        slots, last = torch.arange(self.slots, device=self.text.device), start + count - 1
        tokens = torch.where(slots < s.sinks, slots, last - (last - slots) % (self.slots - s.sinks))
        # 2. A new token attends to the sinks and its window, as far as the mask allows.
        if mask is None:
            sees = tokens <= self._tensor(range(start, start + count))[:, None]
        else:
            sees = mask.to(slots.device)[:, tokens.clamp(0, last)] & (tokens <= last)
        in_window = torch.minimum(tokens, self.text) >= s.sinks + evicted[:, None]
        sees = sees & (in_window | (slots < s.sinks))
        # 3. Its distance to the sinks depends on what is evicted before it. So each new token after the first gets a
        #    copy of the sinks at positions of its own, and attends to that copy alone.
        moved = self._tensor(shifts)[:, None] - shifts[0]
        own = torch.eye(count, dtype=torch.bool, device=slots.device)[:, :, None] & sees[:, None, : s.sinks]
        own, copies = own.flatten(1), (slots[: s.sinks] + moved).flatten()
        # 4. Positions are places in the cache, as it is for the first new token.
        places = torch.cat([copies[: s.sinks], self.text[s.sinks :] - shifts[0], copies[s.sinks :]])
        read = torch.cat([slots, slots[: s.sinks].repeat(count - 1)]) if count > 1 else slice(None)
        visible = torch.cat([own[:, : s.sinks], sees[:, s.sinks :], own[:, s.sinks :]], dim=1)
        return self._pass(new, read, places.clamp(min=0), visible, shifts[0])  # a place below 0: evicted

    def _pass(self, new: Tensor, read: Tensor | slice, places: Tensor, mask: Tensor | None, shift: int = 0):
        turns = places
        if self.streaming.keys == "rotated":  # stored keys are at their places; only the copies of the sinks are not
            turns = None
            if torch.is_tensor(read):
                turns = torch.cat([torch.zeros_like(places[: self.slots]), (places - read)[self.slots :]])
        positions = self.text[new] - shift
        return StreamingPass(self.keys, self.values, new, read, positions, places, turns, mask, self.tables)

    def _tensor(self, numbers: Sequence[int]) -> Tensor:
        return torch.tensor(list(numbers), device=self.text.device)

    def _turn(self, shift: int) -> None:
        """Method B: rotate the stored keys of the ring from their old places to those after `shift` evictions."""
        by = self.turned - shift  # negative: back
        if by and self.length():
            cos, sin = (table[abs(by)] for table in self.tables)
            sin = sin if by > 0 else -sin
            for keys in self.keys:
                ring = keys[:, self.streaming.sinks :]
                ring.copy_(rotate(ring.to(cos.dtype), cos, sin))
        self.turned = shift

    def keep(self, prefix: int, then: Sequence[int] = ()) -> None:
        """As in Cache, with the numbers of tokens in the text. ValueError if evicted tokens would have to come back."""
        end = prefix + len(then)
        if end and self.furthest - end > self.streaming.chunk:
            raise ValueError(
                f"this streaming cache can drop its last {self.streaming.chunk} tokens (its chunk), and "
                f"{self.furthest - end} are to be dropped; make the chunk larger"
            )
        if not is_contiguous(prefix, then):
            source, to = self.slots_of(then), self.slots_of(range(prefix, end))
            for buffer in self.keys + self.values:
                buffer[:, to] = buffer[:, source]
            self.text[to] = self.text[source]
        self._lengths = [min(end, length) for length in self._lengths]
        if end == 0:
            self.turned = self.furthest = 0
            self.text.zero_()  # a compiled pass looks up the place of every slot, also of those not written yet


@dataclass
class StreamingPass:
    """One forward pass over a StreamingCache. T new tokens attend to S entries.

    entries (T,): slots of the new tokens. read: slots of the entries to attend to, a slice or (S,). positions (T,): of
    the new tokens. places (S,): positions of the entries. turns (S,): positions by which their stored keys are still to
    be rotated; None if they are rotated. mask (T, S) bool, or None for causal. tables: cos and sin.
    """

    keys: Sequence[Tensor]
    values: Sequence[Tensor]
    entries: Tensor
    read: Tensor | slice
    positions: Tensor
    places: Tensor
    turns: Tensor | None
    mask: Tensor | None
    tables: tuple[Tensor, Tensor]

    def __post_init__(self):
        if self.turns is not None:
            self.cos, self.sin = (table[self.turns] for table in self.tables)

    def append(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Write keys and values (H_kv, T, d) of the new tokens -> those to attend to (H_kv, S, d), keys rotated.

        keys: before RoPE with method A, after it with method B.
        """
        self.keys[layer].index_copy_(1, self.entries, keys)
        self.values[layer].index_copy_(1, self.entries, values)
        keys, values = self.keys[layer][:, self.read], self.values[layer][:, self.read]
        if self.turns is not None:
            keys = rotate(keys.to(self.cos.dtype), self.cos, self.sin).to(values.dtype)
        return keys, values
