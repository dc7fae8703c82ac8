"""The target writes, and every state that its head read is kept: what a draft is distilled from (lesson 06).

Own text rather than other people's: a draft is only ever asked to go on with what the target wrote (Kim & Rush
2016, arXiv 1606.07947; Zhou et al. 2023, arXiv 2310.08461). States rather than logits: 576 numbers, of 2 bytes in
bf16, a token give all 49,152 logits back.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from time import monotonic

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from lessons_lib.decoding.generate import encode
from lessons_lib.decoding.targets.base import Target
from lessons_lib.models import LanguageModel
from lessons_lib.paths import cache_dir
from lessons_lib.progress import bar
from lessons_lib.training.batched import Text, Writer
from lessons_lib.training.prompts import LONGEST, UserTurn

SHARD, TOOK = 64, "took.json"  # texts; what collecting took
DRAWN, TEMPERATURE = 4, 0.8  # every fourth text is drawn, so that the draft sees more than the likeliest one


def folder(held_out: bool = False) -> Path:
    """Where the shards lie, beside the models in the cache."""
    return cache_dir() / "training" / "smol-draft" / ("held-out" if held_out else "texts")


def collect(
    model: LanguageModel,
    prompts: Sequence[UserTurn],
    into: Path,
    texts: int | None = None,
    rows: int = 64,
    max_new: int = 160,
    longest: int = LONGEST,
    drawn: int = DRAWN,
) -> int:
    """Write the answers to `prompts` as shards below `into`; returns how many texts are there.

    Resumable: prompts that a shard answers are passed over, and the texts are those of one go, however often it was
    cut short (but for near ties in bf16, which rows side by side may round differently).

    texts: stop at so many. rows: texts at a time. longest: prompts of more tokens are left out. drawn: every so
    manieth text is drawn (0: all greedy). ValueError for a model that our decoder cannot compute; TypeError for one
    without a tokenizer; ValueError for one without a chat template.
    """
    into.mkdir(parents=True, exist_ok=True)
    done = {text_key for shard in shards(into) for text_key in keys(shard)}
    target = model.target(kind="decoder")
    jobs = (job for job in plan(target, prompts, drawn) if job.key not in done and len(job.ids) <= longest)
    left = None if texts is None else max(0, texts - len(done))
    writer = Writer(target.decoder, target.eos, rows, longest + max_new, max_new)
    with bar(total=texts or len(prompts), desc="Texts", unit="text") as shown:
        shown.update(len(done))
        for batch in batches(writer.write(islice(jobs, left)), SHARD):
            save(batch, into / f"{len(shards(into)):05d}.safetensors")
            done.update(text.key for text in batch)
            shown.update(len(batch))
    return len(done)


def plan(target: Target, prompts: Sequence[UserTurn], drawn: int) -> Iterator[Text]:
    """Every prompt under the chat template, as a text to be written. Errors as `encode`."""
    for number, prompt in enumerate(prompts, 1):
        ids = encode(target, prompt.messages)
        temperature = TEMPERATURE if drawn and number % drawn == 0 else 0.0
        yield Text(f"{prompt.kind}/{prompt.key}", ids, len(ids), temperature)


def shards(where: Path) -> list[Path]:
    """The finished shards of a folder, in order."""
    return sorted(where.glob("*.safetensors"))


def save(texts: Sequence[Text], path: Path) -> None:
    """Texts, at least one, as one file, which appears whole or not at all: ids, lengths, states (T - 1, D) of each."""
    part = path.with_suffix(".part")
    tensors = {
        "ids": torch.tensor([token for text in texts for token in text.ids], dtype=torch.int32),
        "lengths": torch.tensor([len(text.ids) for text in texts]),
        "prompt_lengths": torch.tensor([text.prompt_length for text in texts]),
        "temperatures": torch.tensor([text.temperature for text in texts]),
        "hidden": torch.cat([text.hidden for text in texts]).cpu(),
    }
    save_file(tensors, part, metadata={"keys": "\n".join(text.key for text in texts)})
    part.replace(path)


@contextmanager
def clocked(where: Path, device: str) -> Iterator[None]:
    """What is done inside adds to what collecting into the folder took, also where it is cut short by an error."""
    where.mkdir(parents=True, exist_ok=True)
    since = monotonic()
    try:
        yield
    finally:
        seconds = took(where).get(device, 0.0) + monotonic() - since
        (where / TOOK).write_text(json.dumps(took(where) | {device: seconds}), encoding="utf-8")


def took(where: Path) -> dict[str, float]:
    """Seconds that collecting into the folder took on each device; {} if nobody kept them."""
    path = where / TOOK
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def keys(path: Path) -> list[str]:
    """Whose texts a shard holds."""
    with safe_open(path, "pt") as file:
        return file.metadata()["keys"].split("\n")


def read(path: Path) -> list[Text]:
    """The texts of a shard, their states (T - 1, D)."""
    with safe_open(path, "pt") as file:
        lengths, prompts = file.get_tensor("lengths").tolist(), file.get_tensor("prompt_lengths").tolist()
        ids = [part.tolist() for part in file.get_tensor("ids").split(lengths)]
        hidden = file.get_tensor("hidden").split([length - 1 for length in lengths])
        temperatures = [round(value, 3) for value in file.get_tensor("temperatures").tolist()]
    return [Text(*fields) for fields in zip(keys(path), ids, prompts, temperatures, hidden, strict=True)]


def read_all(where: Path) -> list[Text]:
    """The texts of all shards of a folder by their keys: training must not depend on when collecting was cut short.

    ValueError if there are none.
    """
    texts = [text for shard in shards(where) for text in read(shard)]
    if not texts:
        raise ValueError(f"{where} holds no texts; run `python -m lessons_lib.training collect` first")
    return sorted(texts, key=lambda text: text.key)


def training_texts() -> list[Text]:
    """All that was written to train on. ValueError if there are none."""
    return read_all(folder())


def held_out_texts() -> list[Text]:
    """All that was written to judge by (`collect --held-out`). ValueError if there are none."""
    return read_all(folder(held_out=True))


def frequent(texts: Sequence[Text], vocab_size: int, kept: int) -> torch.Tensor:
    """The tokens (kept,) that texts use most, prompts too, since answers quote them, ascending.

    Where texts know too few: those with the lowest ids, which the tokenizer merged first because they are frequent.
    """
    tokens = torch.tensor([token for text in texts for token in text.ids])
    order = torch.bincount(tokens, minlength=vocab_size).argsort(descending=True, stable=True)
    return order[:kept].sort().values


def batches(items: Iterable[Text], size: int) -> Iterator[list[Text]]:
    """Lists of `size` items (at least 1), the last one perhaps shorter."""
    items = iter(items)
    while batch := list(islice(items, size)):
        yield batch
