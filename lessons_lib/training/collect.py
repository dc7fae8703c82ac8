"""Collecting texts (lessons 06, 09): batched generation of the target's answers, with the hidden state of every token.

Drafts and heads train on the target's own text, because in use they only continue such text (Kim & Rush 2016,
arXiv 1606.07947; Zhou et al. 2023, arXiv 2310.08461). Hidden states are stored instead of logits: 576 bf16 numbers per
token reproduce all 49,152 logits.

`Writer` decodes many texts at once, a static-shape batch whose rows are refilled as texts end. Each row has its own
length in one large buffer, so a pass reads the weights once for all rows and attention is one call. A prompt is
prefilled alone and its cache entries are copied to its row. `generate` and the engine keep the hidden states of scored
tokens only; here those of the prompt are kept, too.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import islice
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from lessons_lib.caches.cache import ContiguousCache
from lessons_lib.decoding.targets import Target
from lessons_lib.decoding.text import encode
from lessons_lib.models import LanguageModel
from lessons_lib.models.decoder import Decoder, Segment, with_attention
from lessons_lib.paths import cache_dir
from lessons_lib.progress import bar
from lessons_lib.training.loop import written
from lessons_lib.training.prompts import LONGEST, UserTurn

SHARD = 64  # texts in a file
SAMPLED, TEMPERATURE = 4, 0.8  # every fourth text of a kind is sampled, for more variety than greedy text has


@dataclass
class Text:
    """A prompt and the target's answer: ids (T,), of which the first prompt_length are the prompt.

    hidden (T - 1, D): states after the final norm; the head computes token i + 1 from row i.
    temperature: 0 is greedy. key: kind/key of the prompt. subject: of the prompt; "" if its key says it.
    """

    key: str
    ids: list[int]
    prompt_length: int
    temperature: float = 0.0
    hidden: list[Tensor] | Tensor = field(default_factory=list)
    subject: str = ""


def folder(held_out: bool = False) -> Path:
    """Folder of the shards, beside the models in the cache folder."""
    return cache_dir() / "training" / "smol-draft" / ("held-out" if held_out else "texts")


def collect(
    model: LanguageModel,
    prompts: Sequence[UserTurn],
    into: Path,
    texts: int | None = None,
    rows: int = 64,
    max_new: int = 160,
    longest: int = LONGEST,
    sampled: int = SAMPLED,
) -> int:
    """Generate answers to `prompts` and write them as shards into `into`; returns the number of texts there.

    Resumable: prompts with an answer in a shard are skipped, and the texts do not depend on interruptions (except at
    near ties in bf16, which another batch may round differently).

    texts: stop after this many. rows: batch size. longest: prompts of more tokens are left out. sampled: of every kind,
    one text in this many is sampled (0: all greedy).
    """
    done = {text_key for shard in shards(into) for text_key in keys(shard)}
    target = model.target(kind="decoder")
    jobs = (job for job in plan(target, prompts, sampled) if job.key not in done and len(job.ids) <= longest)
    left = None if texts is None else max(0, texts - len(done))
    writer = Writer(target.decoder, target.eos, rows, longest + max_new, max_new)
    with bar(total=texts or len(prompts), desc="Texts", unit="text") as shown:
        shown.update(len(done))
        for batch in batches(writer.write(islice(jobs, left)), SHARD):
            save(batch, into / f"{len(shards(into)):05d}.safetensors")
            done.update(text.key for text in batch)
            shown.update(len(batch))
    return len(done)


def plan(target: Target, prompts: Sequence[UserTurn], sampled: int) -> Iterator[Text]:
    """A Text for every prompt under the chat template, its answer still to be generated."""
    numbers = Counter()  # by kind: kinds alternate, so of all prompts each fourth may be of one kind
    for prompt in prompts:
        numbers[prompt.kind] += 1
        ids = encode(target, prompt.messages)
        temperature = TEMPERATURE if sampled and numbers[prompt.kind] % sampled == 0 else 0.0
        yield Text(f"{prompt.kind}/{prompt.key}", ids, len(ids), temperature, subject=prompt.subject)


def shards(where: Path) -> list[Path]:
    """The finished shards of a folder, in order."""
    return sorted(where.glob("*.safetensors"))


def save(texts: Sequence[Text], path: Path) -> None:
    """Write texts (at least one) as one file, atomically: ids, lengths and states (T - 1, D) of each."""
    tensors = {
        "ids": torch.tensor([token for text in texts for token in text.ids], dtype=torch.int32),
        "lengths": torch.tensor([len(text.ids) for text in texts]),
        "prompt_lengths": torch.tensor([text.prompt_length for text in texts]),
        "temperatures": torch.tensor([text.temperature for text in texts]),
        "hidden": torch.cat([text.hidden for text in texts]).cpu(),
    }
    names = {"keys": [text.key for text in texts], "subjects": [text.subject for text in texts]}
    with written(path) as part:
        save_file(tensors, part, metadata={name: "\n".join(of) for name, of in names.items()})


def keys(path: Path) -> list[str]:
    """Keys of the texts in a shard."""
    with safe_open(path, "pt") as file:
        return file.metadata()["keys"].split("\n")


def read(path: Path) -> list[Text]:
    """Read the texts of a shard with their states (T - 1, D)."""
    with safe_open(path, "pt") as file:
        lengths, prompts = file.get_tensor("lengths").tolist(), file.get_tensor("prompt_lengths").tolist()
        ids = [part.tolist() for part in file.get_tensor("ids").split(lengths)]
        hidden = file.get_tensor("hidden").split([length - 1 for length in lengths])
        temperatures = [round(value, 3) for value in file.get_tensor("temperatures").tolist()]
        subjects = file.metadata()["subjects"].split("\n")
    return [Text(*fields) for fields in zip(keys(path), ids, prompts, temperatures, hidden, subjects, strict=True)]


def read_all(where: Path) -> list[Text]:
    """Read the texts of all shards of a folder, sorted by key: training must not depend on the order of collecting.

    Raises ValueError if there are none.
    """
    texts = [text for shard in shards(where) for text in read(shard)]
    if not texts:
        raise ValueError(f"{where} holds no texts; run `python -m lessons_lib.training collect` first")
    return sorted(texts, key=lambda text: text.key)


def training_texts() -> list[Text]:
    """All texts for training. Raises ValueError if there are none."""
    return read_all(folder())


def held_out_texts() -> list[Text]:
    """All texts for evaluation (`collect --held-out`). Raises ValueError if there are none."""
    return read_all(folder(held_out=True))


def frequent(texts: Sequence[Text], vocab_size: int, kept: int) -> Tensor:
    """The `kept` most frequent tokens of the texts, prompts included (answers quote them), in ascending order.

    If the texts have too few different tokens, the lowest ids fill up: the tokenizer merged them first, so they are
    frequent.
    """
    tokens = torch.tensor([token for text in texts for token in text.ids])
    order = torch.bincount(tokens, minlength=vocab_size).argsort(descending=True, stable=True)
    return order[:kept].sort().values


def batches(items: Iterable, size: int) -> Iterator[list]:
    """Lists of `size` items; the last one may be shorter."""
    items = iter(items)
    while batch := list(islice(items, size)):
        yield batch


# --- Batched generation


class RowsCache:
    """KV cache of a batch of `rows` texts, (rows, H_kv, capacity, d) per layer; each row has its own length.

    capacity: maximum number of tokens in a row.
    """

    def __init__(self, decoder: Decoder, rows: int, capacity: int):
        c, like = decoder.config, decoder.embedding.weight
        shape = rows, c.num_kv_heads, capacity, c.head_dim
        self.keys = [torch.zeros(shape, dtype=like.dtype, device=like.device) for _ in range(c.num_layers)]
        self.values = [torch.zeros_like(keys) for keys in self.keys]
        self.lengths = torch.zeros(rows, dtype=torch.long, device=like.device)
        self.each = torch.arange(rows, device=like.device)

    def append(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Append keys, values (H_kv, rows, d), one token per row -> all (rows, H_kv, S, d), S for the longest row."""
        longest = int(self.lengths.max()) + 1
        for buffers, new in ((self.keys, keys), (self.values, values)):
            buffers[layer][self.each, :, self.lengths] = new.transpose(0, 1)
        return self.keys[layer][:, :, :longest], self.values[layer][:, :, :longest]

    def positions(self) -> Tensor:
        """Position (rows,) of the next token of each row."""
        return self.lengths.clone()

    def mask(self) -> Tensor:
        """Attention mask (rows, S) bool: the tokens of each row, the new one included."""
        return torch.arange(int(self.lengths.max()) + 1, device=self.lengths.device) <= self.lengths[:, None]

    def put(self, row: int, one: ContiguousCache) -> None:
        """Replace a row by the cache of one text."""
        length = one.length()
        for layer in range(len(self.keys)):
            self.keys[layer][row, :, :length] = one.keys[layer][:, :length]
            self.values[layer][row, :, :length] = one.values[layer][:, :length]
        self.lengths[row] = length


def attend_texts(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    """Attention of one query per row: q (H, rows, d), keys, values (rows, H_kv, S, d), mask (rows, S) -> (H, rows, d).

    Not the engine's attention: in bf16, in which texts are collected, this call is faster and more exact.
    """
    heads, rows, dim = q.shape
    folded = q.transpose(0, 1).reshape(rows, keys.shape[1], -1, dim)
    out = F.scaled_dot_product_attention(folded, keys, values, attn_mask=mask[:, None, None])
    return out.reshape(rows, heads, dim).transpose(0, 1)


class Writer:
    """Generates up to max_new tokens for each text, `rows` texts at a time; a text ends with a token of `eos`.

    capacity: tokens of a row, enough for the longest prompt and max_new. The tokens sampled for a text depend on its
    key alone, not on other texts.
    """

    def __init__(self, decoder: Decoder, eos: Iterable[int], rows: int, capacity: int, max_new: int):
        self.decoder, self.eos, self.max_new = decoder, frozenset(eos), max_new
        self.cache, self.together = RowsCache(decoder, rows, capacity), with_attention(decoder, attend_texts)
        self.texts: list[Text | None] = [None] * rows
        self.generators: list[torch.Generator | None] = [None] * rows

    @torch.no_grad()
    def write(self, jobs: Iterable[Text]) -> Iterator[Text]:
        """Generate answers to texts that hold a prompt; yields them as they finish."""
        waiting = iter(jobs)
        while True:
            for row in [row for row, text in enumerate(self.texts) if text is None]:
                if (job := next(waiting, None)) is None:
                    break
                yield from self._admit(row, job)
            if any(self.texts):
                yield from self._advance()
            elif job is None:  # else every text ended with its first token, and others wait
                return

    def _admit(self, row: int, text: Text) -> Iterator[Text]:
        """Prefill a prompt and choose its first token. The text gets a row unless it ends with that token."""
        c, like = self.decoder.config, self.decoder.embedding.weight
        one = ContiguousCache(c.num_layers, c.num_kv_heads, c.head_dim, like.dtype, like.device, capacity=len(text.ids))
        # prefill the prompt alone, with its own cache
        positions = torch.arange(len(text.ids), device=like.device)
        states = self.decoder(torch.tensor(text.ids, device=like.device), [Segment(positions, one)])
        final = self.decoder.final(states.last)
        # copy its cache to the row
        text.hidden, self.texts[row] = list(final[:-1].clone()[None]), text
        self.generators[row] = torch.Generator(like.device).manual_seed(number_of(text.key))
        self.cache.put(row, one)
        yield from self._take([row], final[-1:])

    def _advance(self) -> Iterator[Text]:
        """Decode one token in every row; empty rows are computed too."""
        tokens = [text.ids[-1] if text else 0 for text in self.texts]
        segment = Segment(self.cache.positions(), self.cache, self.cache.mask())
        states = self.together(torch.tensor(tokens, device=self.cache.lengths.device), [segment])
        busy = [row for row, text in enumerate(self.texts) if text]
        self.cache.lengths[busy] += 1
        yield from self._take(busy, self.decoder.final(states.last)[busy])

    def _take(self, rows: list[int], final: Tensor) -> Iterator[Text]:
        """Choose the next token of each row from the states (rows, D); yields the texts that end with it."""
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
    """A 64-bit number for a text's key: the same in every process, unlike hash()."""
    return int.from_bytes(sha256(key.encode()).digest()[:8], "big")


def choose(logits: Tensor, temperatures: Sequence[float], generators: Sequence[torch.Generator]) -> list[int]:
    """logits (rows, V) -> a token per row: the argmax at temperature 0, else sampled with the row's generator."""
    chosen = logits.argmax(-1)
    for row, (temperature, generator) in enumerate(zip(temperatures, generators, strict=True)):
        if temperature > 0:
            chosen[row] = torch.multinomial((logits[row] / temperature).softmax(-1), 1, generator=generator)[0]
    return chosen.tolist()
