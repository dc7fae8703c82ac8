"""An adapter for one early exit (lesson 13), recipe C: the model stays as it is, only the exit's reading is trained.

The loss is KL(p_L, p_E) between the last layer's distribution and the exit's. The texts are like those of its use: the
model's own answers. The layers run once over every text; the steps train on their stored states.
"""

import json
from collections.abc import Callable, Sequence
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
from lessons_lib.training.evaluate import GAMMA, tokens_per_pass
from lessons_lib.training.layerskip import Batch, PaddedDecoder
from lessons_lib.training.loop import TrainingRun, resume, stored, train, update, written
from lessons_lib.training.prompts import UserTurn


@dataclass(frozen=True)
class ExitRecipe:
    """Hyperparameters of recipe C. exit_layer: E.

    prompts: so many of our own. copies: texts per prompt; the first is greedy, the others sampled.
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


def fresh(decoder: Decoder, recipe: ExitRecipe) -> ExitRun:
    """A new run; the adapter is in float32, or in float64 as the decoder."""
    if not 1 <= recipe.exit_layer < len(decoder.layers):
        raise ValueError(f"exit_layer={recipe.exit_layer} is no early exit; choose from 1 to {len(decoder.layers) - 1}")
    generator = torch.Generator().manual_seed(recipe.seed)
    adapter = ExitAdapter(decoder.config.hidden_size, recipe.exit_layer, generator)
    adapter.to(decoder.norm.device, torch.promote_types(decoder.norm.dtype, torch.float32))
    weights = dict(adapter.named_parameters())
    optimizer = torch.optim.AdamW(weights.values(), lr=recipe.rate, weight_decay=0.0)
    return ExitRun(recipe=recipe, adapter=adapter, weights=weights, optimizers=[optimizer])


def trained(decoder: Decoder, folder: Path) -> ExitRun:
    """The run stored in `folder`. Raises ValueError if there is none."""
    return stored(ExitRecipe, folder, lambda recipe, _: fresh(decoder, recipe))


def train_exit(
    decoder: Decoder, texts: Sequence[Text], recipe: ExitRecipe, folder: Path, minutes: float | None = None
) -> ExitRun:
    """Train the adapter of an exit, or continue the run in `folder`."""
    run = resume(recipe, folder, lambda recipe, _: fresh(decoder, recipe))
    states = answer_states(decoder, texts, recipe.exit_layer)
    states = states.split([len(text.ids) - text.prompt_length for text in texts], dim=1)

    def one_step(which: list[int]) -> None:
        run.optimizers[0].zero_grad()
        loss, agree = divergence(decoder, run.adapter, torch.cat([states[i] for i in which], dim=1))
        loss.backward()
        update(run, {"loss": round(loss.item(), 5), "agree": round(agree.float().mean().item(), 4)})

    train(run, [len(text.ids) for text in texts], one_step, folder, minutes, "Exit adapter")
    return run


@torch.no_grad()
def answer_states(decoder: Decoder, texts: Sequence[Text], exit_layer: int, rows: int = 16) -> Tensor:
    """States (2, N, D) that predict the N answer tokens, text by text: after the exit, and after layers and final norm.

    rows: texts per forward pass, of like length.
    """
    padded, found = PaddedDecoder(decoder), [torch.empty(0)] * len(texts)
    order = sorted(range(len(texts)), key=lambda n: len(texts[n].ids))
    for those in batches(order, rows):
        batch = Batch.of([texts[n] for n in those], decoder.norm.device)
        for layer, x in enumerate(padded.states(batch.ids), 1):
            if layer == exit_layer:
                early = batch.answers(x)
        both = torch.stack([early, decoder.final(batch.answers(x))])
        lengths = [len(texts[n].ids) - texts[n].prompt_length for n in those]
        for n, states in zip(those, both.split(lengths, dim=1), strict=True):
            found[n] = states
    return torch.cat(found, dim=1)


def divergence(decoder: Decoder, adapter: ExitAdapter, states: Tensor) -> tuple[Tensor, Tensor]:
    """Mean KL(p_L, p_E) over the answers' positions (), and whether both argmaxes are equal (N,).

    states (2, N, D): of `answer_states`.
    """
    early, theirs = states
    ours = decoder.final(adapter(early.to(adapter.W1.dtype)).to(theirs.dtype))
    return DistillationLoss.apply(ours, theirs, decoder.head.weight, 0.0)


@torch.no_grad()
def evaluate_exit(decoder: Decoder, adapter: ExitAdapter, texts: Sequence[Text], states: Tensor) -> dict:
    """How well an exit imitates the last layer on the answers of these texts. states: of `answer_states`.

    kl: mean KL(p_L, p_E) in nats. agreement: of the argmaxes. tokens_per_pass: to expect of GAMMA draft tokens, on the
    texts that were not sampled.
    """
    loss, agree = divergence(decoder, adapter, states)
    hits = agree.split([len(text.ids) - text.prompt_length for text in texts])
    greedy = [of.tolist()[1:] for text, of in zip(texts, hits, strict=True) if text.temperature == 0]
    return {
        "texts": len(texts),
        "tokens": len(agree),
        "kl": loss.item(),
        "agreement": agree.float().mean().item(),
        "tokens_per_pass": tokens_per_pass(greedy, GAMMA),
    }


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
                answers = model.network.generate(ids, attention_mask=mask, **options)[:, longest:].tolist()
                for job, answer in zip(some, answers, strict=True):
                    end = next((at for at, token in enumerate(answer, 1) if token in target.eos), len(answer))
                    found.append(Text(job.key, job.ids + answer[:end], len(job.ids), temperature))
    return found


def stored_texts(folder: Path, recipe: ExitRecipe, write: Callable[[], list[Text]]) -> list[Text]:
    """The texts in `folder` that follow from this recipe, written by write() the first time."""
    path = folder / f"texts-{recipe.prompts}-{recipe.copies}-{recipe.seed}.json"
    if not path.is_file():
        rows = [[text.key, text.ids, text.prompt_length, text.temperature] for text in write()]
        with written(path) as part:
            part.write_text(json.dumps(rows))
    return [Text(*row) for row in json.loads(path.read_text())]
