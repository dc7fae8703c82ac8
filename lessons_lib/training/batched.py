"""Many texts at once (lesson 06): a batch of rows that all take one token per forward, refilled as rows end.

For collecting text, not for timing. Each row has its own length in one large buffer, so a forward reads the
weights once for all rows and attention is one call; a prompt is fed alone and its entries copied to its row. A text of
n new tokens takes one forward over its prompt and a share in n - 1 forwards of one token a row.

Not `step`, which has states of those tokens alone that it scores: here a prompt's are all kept and only its last token
is scored. Not the engine's blocks, which would be collected anew for all rows in every layer of every forward.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256

import torch
import torch.nn.functional as F
from torch import Tensor

from lessons_lib.caches.cache import ContiguousCache
from lessons_lib.models.decoder import Decoder, Segment


@dataclass
class Text:
    """One prompt and what the target wrote: ids (T,), of them prompt_length the prompt's.

    hidden: (T - 1, D) after the final norm: row i is what the head read to choose token i + 1.
    temperature: 0 is greedy. key: whose text it is.
    """

    key: str
    ids: list[int]
    prompt_length: int
    temperature: float = 0.0
    hidden: list[Tensor] | Tensor = field(default_factory=list)


class RowsCache:
    """Keys and values of `rows` texts, (rows, H_kv, capacity, d) per layer, each row with its own length.

    capacity: tokens that a row holds at most; IndexError for one more.
    """

    def __init__(self, decoder: Decoder, rows: int, capacity: int):
        c, like = decoder.config, decoder.embedding.weight
        shape = rows, c.num_kv_heads, capacity, c.head_dim
        self.keys = [torch.zeros(shape, dtype=like.dtype, device=like.device) for _ in range(c.num_layers)]
        self.values = [torch.zeros_like(keys) for keys in self.keys]
        self.lengths = torch.zeros(rows, dtype=torch.long, device=like.device)
        self.each = torch.arange(rows, device=like.device)

    def append(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """keys, values (H_kv, rows, d), one new token a row -> all (rows, H_kv, S, d), S as the longest needs."""
        longest = int(self.lengths.max()) + 1
        for buffers, new in ((self.keys, keys), (self.values, values)):
            buffers[layer][self.each, :, self.lengths] = new.transpose(0, 1)
        return self.keys[layer][:, :, :longest], self.values[layer][:, :, :longest]

    def positions(self) -> Tensor:
        """(rows,): where the token that each row feeds next stands in its text."""
        return self.lengths.clone()

    def mask(self) -> Tensor:
        """(rows, S) bool: what a row may see, the token about to be fed included."""
        return torch.arange(int(self.lengths.max()) + 1, device=self.lengths.device) <= self.lengths[:, None]

    def put(self, row: int, one: ContiguousCache) -> None:
        """Replace a row by the entries of one text, no more than the capacity."""
        length = one.length()
        for layer in range(len(self.keys)):
            self.keys[layer][row, :, :length] = one.keys[layer][:, :length]
            self.values[layer][row, :, :length] = one.values[layer][:, :length]
        self.lengths[row] = length


def attend_texts(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    """q (H, rows, d), one query a row; keys and values (rows, H_kv, S, d); mask (rows, S) -> (H, rows, d).

    Other than serving's: in bf16, which texts are collected in, this is faster than two products (a quarter less time
    at 64 rows of 300 entries on two cores), and four times as exact.
    """
    heads, rows, dim = q.shape
    folded = q.transpose(0, 1).reshape(rows, keys.shape[1], -1, dim)
    out = F.scaled_dot_product_attention(folded, keys, values, attn_mask=mask[:, None, None])
    return out.reshape(rows, heads, dim).transpose(0, 1)


class Writer:
    """Writes up to max_new tokens to each text, `rows` texts at a time; a text ends with a token of `eos`.

    capacity: tokens of a row, its prompt's included. What is drawn for a text depends on its key alone, not on the
    texts written before it or beside it.
    """

    def __init__(self, decoder: Decoder, eos: Iterable[int], rows: int, capacity: int, max_new: int):
        self.decoder, self.eos, self.max_new, self.capacity = decoder, frozenset(eos), max_new, capacity
        self.cache, self.kernels = RowsCache(decoder, rows, capacity), replace(decoder.kernels, attend=attend_texts)
        self.texts: list[Text | None] = [None] * rows
        self.generators: list[torch.Generator | None] = [None] * rows

    @torch.no_grad()
    def write(self, jobs: Iterable[Text]) -> Iterator[Text]:
        """Texts that hold a prompt -> the same, finished, in the order they end; those too long are left out."""
        waiting = (job for job in jobs if len(job.ids) + self.max_new <= self.capacity)
        while True:
            for row in [row for row, text in enumerate(self.texts) if text is None]:
                if (job := next(waiting, None)) is None:
                    break
                yield from self._admit(row, job)
            if not any(self.texts):
                return
            yield from self._advance()

    def _admit(self, row: int, text: Text) -> Iterator[Text]:
        """Feed a prompt, which yields its first token, and give it a row unless it ends at once."""
        c, like = self.decoder.config, self.decoder.embedding.weight
        one = ContiguousCache(c.num_layers, c.num_kv_heads, c.head_dim, like.dtype, like.device, capacity=len(text.ids))
        positions = torch.arange(len(text.ids), device=like.device)
        states = self.decoder(torch.tensor(text.ids, device=like.device), [Segment(positions, one)])
        final = self.decoder.final(states.last)
        text.hidden, self.texts[row] = list(final[:-1].clone()[None]), text
        self.generators[row] = generator_of(text.key, like.device)
        self.cache.put(row, one)
        yield from self._take([row], final[-1:])

    def _advance(self) -> Iterator[Text]:
        """One token for every row; empty rows ride along."""
        tokens = [text.ids[-1] if text else 0 for text in self.texts]
        segment = Segment(self.cache.positions(), self.cache, self.cache.mask())
        states = self.decoder(torch.tensor(tokens, device=self.cache.lengths.device), [segment], kernels=self.kernels)
        busy = [row for row, text in enumerate(self.texts) if text]
        self.cache.lengths[busy] += 1
        yield from self._take(busy, self.decoder.final(states.last)[busy])

    def _take(self, rows: list[int], final: Tensor) -> Iterator[Text]:
        """Choose the next token of each row from the states (rows, D); hand out texts that end with it."""
        logits = F.linear(final, self.decoder.head.weight).float()
        temperatures = [self.texts[row].temperature for row in rows]
        chosen = choose(logits, temperatures, [self.generators[row] for row in rows])
        for row, state, token in zip(rows, final, chosen, strict=True):
            text = self.texts[row]
            text.hidden.append(state[None])
            text.ids.append(token)
            if token in self.eos or len(text.ids) - text.prompt_length == self.max_new:
                text.hidden = torch.cat(text.hidden)
                self.texts[row] = None
                self.cache.lengths[row] = 0
                yield text


def number_of(key: str) -> int:
    """A number of 64 bits for a text's key: the same in every process, unlike hash()."""
    return int.from_bytes(sha256(key.encode()).digest()[:8], "big")


def generator_of(key: str, device: torch.device | str = "cpu") -> torch.Generator:
    """A generator seeded by a text's key."""
    return torch.Generator(device).manual_seed(number_of(key))


def choose(logits: Tensor, temperatures: Sequence[float], generators: Sequence[torch.Generator]) -> list[int]:
    """logits (rows, V) -> a token a row: the likeliest at temperature 0, else a draw by the row's generator."""
    chosen = logits.argmax(-1)
    for row, (temperature, generator) in enumerate(zip(temperatures, generators, strict=True)):
        if temperature > 0:
            chosen[row] = torch.multinomial((logits[row] / temperature).softmax(-1), 1, generator=generator)[0]
    return chosen.tolist()
