"""An adapter for one early exit (lesson 13), recipe C: the model stays as it is, only the exit's reading is trained.

The loss is KL(p_L, p_E) between the last layer's distribution and the exit's, on text that the model itself wrote,
because in use it only continues such text. There is no backward pass through the layers.
"""

import json
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from lessons_lib.decoding.text import encode
from lessons_lib.models import LanguageModel
from lessons_lib.models.decoder import Decoder
from lessons_lib.models.exits import ExitAdapter
from lessons_lib.training.collect import TEMPERATURE, Text, batches
from lessons_lib.training.distill import DistillationLoss
from lessons_lib.training.layerskip import Batch, PaddedDecoder
from lessons_lib.training.loop import TrainingRun, read_checkpoint, restored, resume, train, update
from lessons_lib.training.prompts import UserTurn

TEXTS = "texts.json"


@dataclass(frozen=True)
class ExitRecipe:
    """Hyperparameters of recipe C. exit_layer: E. prompts: so many of our own. copies: texts per prompt; the first is
    greedy, the others sampled.

    steps, tokens (prompts included, per step), rate, warmup, seed: as in `distill.Recipe`.
    """

    exit_layer: int = 10
    prompts: int = 1_040
    copies: int = 3
    steps: int = 800
    tokens: int = 2_048
    rate: float = 2e-3
    warmup: int = 40
    seed: int = 0


@dataclass(kw_only=True)
class ExitRun(TrainingRun):
    """Training run of an exit adapter; its curve has the loss and the share of equal argmaxes."""

    adapter: ExitAdapter

    def weights(self) -> dict[str, Tensor]:
        return dict(self.adapter.named_parameters())


def fresh(decoder: Decoder, recipe: ExitRecipe) -> ExitRun:
    """A new run; the adapter is in float32, or in float64 as the decoder."""
    if not 1 <= recipe.exit_layer < len(decoder.layers):
        raise ValueError(f"exit_layer={recipe.exit_layer} is no early exit; choose from 1 to {len(decoder.layers) - 1}")
    generator = torch.Generator().manual_seed(recipe.seed)
    adapter = ExitAdapter(decoder.config.hidden_size, recipe.exit_layer, generator)
    adapter.to(decoder.norm.device, torch.promote_types(decoder.norm.dtype, torch.float32))
    optimizer = torch.optim.AdamW(adapter.parameters(), lr=recipe.rate, weight_decay=0.0)
    return ExitRun(recipe=recipe, adapter=adapter, optimizers=[optimizer])


def trained(decoder: Decoder, folder: Path) -> ExitRun:
    """The run stored in `folder`. Raises ValueError if there is none."""
    saved = read_checkpoint(folder, "layerskip-exit")
    return restored(fresh(decoder, ExitRecipe(**saved["recipe"])), saved)


def train_exit(
    decoder: Decoder,
    texts: Sequence[Text],
    recipe: ExitRecipe,
    folder: Path,
    minutes: float | None = None,
    *,
    fast: bool = False,
) -> ExitRun:
    """Train the adapter of an exit, or continue the run in `folder`. fast: matmuls in bf16."""
    run = resume(recipe, folder, lambda _: fresh(decoder, recipe))
    padded = PaddedDecoder(decoder)

    def one_step(which: list[int]) -> None:
        run.optimizers[0].zero_grad()
        loss, agree = divergence(padded, run.adapter, [texts[i] for i in which], fast)
        loss.backward()
        update(run, {"loss": round(loss.item(), 5), "agree": round(agree.float().mean().item(), 4)})

    train(run, [len(text.ids) for text in texts], one_step, folder, minutes, "Exit adapter")
    return run


def divergence(
    padded: PaddedDecoder, adapter: ExitAdapter, texts: Sequence[Text], fast: bool = False
) -> tuple[Tensor, Tensor]:
    """Mean KL(p_L, p_E) over the answers' positions (), and whether both argmaxes are equal (N,)."""
    decoder = padded.decoder
    device = decoder.norm.device
    batch = Batch.of(texts, device)
    with torch.autocast(device.type, torch.bfloat16) if fast else nullcontext():
        with torch.no_grad():
            for layer, x in enumerate(padded.states(batch.ids), 1):
                if layer == adapter.exit_layer:
                    early = batch.answers(x)
            theirs = decoder.final(batch.answers(x))
        ours = decoder.final(adapter(early))
    exact = torch.bfloat16 if fast else ours.dtype
    return DistillationLoss.apply(ours.to(exact), theirs.to(exact), decoder.head.weight.to(exact), 0.0)


@torch.no_grad()
def evaluate_exit(decoder: Decoder, adapter: ExitAdapter, texts: Sequence[Text], rows: int = 16) -> dict:
    """Mean KL(p_L, p_E) in nats and agreement of the argmaxes on the answers of these texts. rows: texts per pass."""
    padded, total, agreeing, count = PaddedDecoder(decoder), 0.0, 0, 0
    for some in batches(texts, rows):
        loss, agree = divergence(padded, adapter, some)
        total += loss.item() * len(agree)
        agreeing += int(agree.sum())
        count += len(agree)
    return {"texts": len(texts), "tokens": count, "kl": total / count, "agreement": agreeing / count}


# --- The model's own texts


@torch.no_grad()
def own_texts(
    model: LanguageModel, turns: Sequence[UserTurn], copies: int, seed: int, max_new: int = 128, rows: int = 520
) -> list[Text]:
    """The model's answers to these prompts, `copies` of each, by transformers' batched generate. rows: a batch."""
    target, pad, found = model.target(), model.tokenizer.pad_token_id, []
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        for temperature in [0.0, *[TEMPERATURE] * (copies - 1)]:
            jobs = (Text(f"{turn.kind}/{turn.key}", encode(target, turn.messages), 0, temperature) for turn in turns)
            for some in batches(jobs, rows):
                longest = max(len(job.ids) for job in some)
                ids = torch.tensor([[pad] * (longest - len(job.ids)) + job.ids for job in some], device=model.device)
                mask = torch.tensor([[0] * (longest - len(job.ids)) + [1] * len(job.ids) for job in some]).to(ids)
                options = (
                    dict(do_sample=True, temperature=temperature, top_k=0) if temperature else dict(do_sample=False)
                )
                options |= dict(max_new_tokens=max_new, pad_token_id=pad, eos_token_id=list(target.eos))
                written = model.network.generate(ids, attention_mask=mask, **options)[:, longest:].tolist()
                for job, answer in zip(some, written, strict=True):
                    end = next((at for at, token in enumerate(answer, 1) if token in target.eos), len(answer))
                    found.append(Text(job.key, job.ids + answer[:end], len(job.ids), temperature))
    return found


def stored_texts(folder: Path, write) -> list[Text]:
    """The texts in `folder`, written by write() the first time."""
    path = folder / TEXTS
    if not path.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        rows = [[text.key, text.ids, text.prompt_length, text.temperature] for text in write()]
        part = path.with_suffix(".part")
        part.write_text(json.dumps(rows))
        part.replace(path)
    return [Text(*row) for row in json.loads(path.read_text())]
