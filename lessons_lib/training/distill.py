"""Distilling: a small draft learns the target's distribution on the target's own text (lesson 06).

The loss is KL(p, q) over the tokens that the draft can score (Hinton et al. 2015, arXiv 1503.02531), mixed with
the cross-entropy of the target's likeliest token, which is all that greedy acceptance asks for.
"""

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from itertools import count, islice
from pathlib import Path
from time import monotonic

import torch
import torch.nn.functional as F
from torch import Tensor

from lessons_lib.models.decoder import Decoder, Segment
from lessons_lib.models.draft import TrimmedDecoder, own_weights, start_from
from lessons_lib.progress import bar
from lessons_lib.training.batched import Text

SAVE_EVERY = 100  # steps
CHECKPOINT, CURVE = "checkpoint.pt", "curve.json"


@dataclass(frozen=True)
class Recipe:
    """layers: numbers of the target's layers to start from. kept: tokens the head scores. tokens: per step.

    hard: weight of the cross-entropy, the rest is KL's. states: weight of the states' distance, added to both.
    prompt: weight of a prompt's tokens beside 1 of an answer's. skip: first tokens of every text, the
    template's, that teach nothing.
    """

    layers: tuple[int, ...] = (0, 1, 29)
    kept: int = 16_384
    steps: int = 3_000
    tokens: int = 2_048
    rate: float = 1e-3
    warmup: int = 100
    hard: float = 0.3
    states: float = 0.0
    prompt: float = 0.2
    skip: int = 24
    seed: int = 0


@dataclass
class Run:
    """A training run: the draft, its optimizer, the steps done, and what each cost."""

    recipe: Recipe
    draft: TrimmedDecoder
    optimizer: torch.optim.Optimizer
    step: int = 0
    curve: list[dict[str, float]] = field(default_factory=list)


class Nothing:
    """The cache of a training forward: the whole text is there, nothing is kept."""

    def append(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        return keys, values


def distill(
    target: Decoder,
    texts: Sequence[Text],
    recipe: Recipe,
    folder: Path,
    minutes: float | None = None,
    fast: bool = True,
) -> Run:
    """Train, or go on training where `folder` holds a checkpoint, until recipe.steps or for some minutes.

    Leaves a checkpoint and the loss curve in `folder`. fast: products in bf16, weights in float32 all the same.
    Interrupted and resumed, it ends with the same weights as in one go. ValueError if the checkpoint's recipe
    is another one.
    """
    run, until = resume(target, texts, recipe, folder), monotonic() + 60 * (minutes or math.inf)
    order = islice(schedule([len(text.ids) for text in texts], recipe), run.step, recipe.steps)
    with bar(total=recipe.steps, desc="Distilling", unit="step") as shown:
        shown.update(run.step)
        for indices in order:
            train_step(run, [texts[i] for i in indices], fast)
            shown.update(1)
            shown.set_postfix(loss=f"{run.curve[-1]['loss']:.3f}", agree=f"{run.curve[-1]['agree']:.0%}")
            stop = monotonic() > until
            if stop or run.step % SAVE_EVERY == 0 or run.step == recipe.steps:
                save(run, folder)
            if stop:
                break
    return run


def train_step(run: Run, texts: Sequence[Text], fast: bool) -> None:
    """One update from a batch of texts, recorded in the curve."""
    for group in run.optimizer.param_groups:
        group["lr"] = run.recipe.rate * pace(run.step, run.recipe)
    with torch.autocast("cpu", torch.bfloat16) if fast else nullcontext():
        theirs, ours, weights = states(run.draft, texts, run.recipe)
        with torch.no_grad():
            p = F.linear(theirs, run.draft.head.weight)
        q = F.linear(ours, run.draft.head.weight)
    loss = distillation_loss(p, q, weights, run.recipe.hard)
    loss = loss + run.recipe.states * distance(theirs, ours, weights)
    run.optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(own_weights(run.draft).values(), 1.0)
    run.optimizer.step()
    run.step += 1
    agree = (p.argmax(-1) == q.argmax(-1))[weights == 1].float().mean()
    run.curve.append({"step": run.step, "loss": round(loss.item(), 5), "agree": round(agree.item(), 4)})


def distillation_loss(p: Tensor, q: Tensor, weights: Tensor, hard: float) -> Tensor:
    """Logits p of the target and q of the draft (T, K), weights (T,) -> the weighted mean over positions of
    (1 - hard) KL(p, q) + hard (-log q of p's likeliest token), in nats."""
    exact = torch.promote_types(p.dtype, torch.float32)
    log_p, log_q = p.to(exact).log_softmax(-1), q.to(exact).log_softmax(-1)
    divergence = F.kl_div(log_q, log_p, reduction="none", log_target=True).sum(-1)
    likeliest = F.nll_loss(log_q, log_p.argmax(-1), reduction="none")
    return (weights * ((1 - hard) * divergence + hard * likeliest)).sum() / weights.sum()


def distance(theirs: Tensor, ours: Tensor, weights: Tensor) -> Tensor:
    """The weighted mean of 1 - cosine between states (T, D): head and embedding being shared, equal states are
    equal distributions, and 576 numbers teach more at once than one likeliest token."""
    return (weights * (1 - F.cosine_similarity(theirs, ours, dim=-1))).sum() / weights.sum()


def states(draft: TrimmedDecoder, texts: Sequence[Text], recipe: Recipe) -> tuple[Tensor, Tensor, Tensor]:
    """What the target's head read and what the draft's reads (T, D) at every position that counts, and weights."""
    weights = torch.cat([position_weights(text, recipe) for text in texts])
    counts = weights > 0
    ours = draft.final(read(draft, [text.ids[:-1] for text in texts])[counts])
    return torch.cat([text.hidden for text in texts])[counts].to(ours.dtype), ours, weights[counts]


def read(draft: Decoder, texts: Sequence[Sequence[int]]) -> Tensor:
    """The draft's states (T, D) after its last layer over all texts, packed."""
    segments = [Segment(torch.arange(len(ids)), Nothing()) for ids in texts]
    return draft(torch.tensor([token for ids in texts for token in ids]), segments).last


def position_weights(text: Text, recipe: Recipe) -> Tensor:
    """(T - 1,): 1 where the next token is the answer's, recipe.prompt where it is the prompt's, else 0."""
    weights = torch.ones(len(text.ids) - 1)
    weights[: text.prompt_length - 1] = recipe.prompt
    weights[: min(recipe.skip, text.prompt_length - 1)] = 0
    return weights


def schedule(lengths: Sequence[int], recipe: Recipe) -> Iterator[list[int]]:
    """Batches of text numbers without end: every epoch all texts in an order of its own, the seed's."""
    generator = torch.Generator().manual_seed(recipe.seed)
    batch, size = [], 0
    for _ in count():
        for index in torch.randperm(len(lengths), generator=generator).tolist():
            batch.append(index)
            size += lengths[index]
            if size >= recipe.tokens:
                yield batch
                batch, size = [], 0


def pace(step: int, recipe: Recipe) -> float:
    """The learning rate's share at a step: up in a line, down along a cosine."""
    if step < recipe.warmup:
        return (step + 1) / recipe.warmup
    return 0.5 + 0.5 * math.cos(math.pi * (step - recipe.warmup) / max(1, recipe.steps - recipe.warmup))


def frequent(texts: Sequence[Text], vocab_size: int, kept: int) -> Tensor:
    """The tokens that texts use most, prompts too, since answers quote them, ascending; where they know too few,
    those with the lowest ids, which the tokenizer merged first because they are frequent."""
    tokens = torch.tensor([token for text in texts for token in text.ids])
    order = torch.bincount(tokens, minlength=vocab_size).argsort(descending=True, stable=True)
    return order[:kept].sort().values


def resume(target: Decoder, texts: Sequence[Text], recipe: Recipe, folder: Path) -> Run:
    """The run that `folder` holds, or a fresh one. ValueError if it holds one of another recipe."""
    if not (folder / CHECKPOINT).is_file():
        return fresh(target, recipe, frequent(texts, target.config.vocab_size, recipe.kept))
    run = trained(target, folder)
    if run.recipe != recipe:
        raise ValueError(f"{folder} holds a run of another recipe, {run.recipe}; remove it, or choose another folder")
    return run


def trained(target: Decoder, folder: Path) -> Run:
    """The run that `folder` holds. ValueError if it holds none."""
    if not (folder / CHECKPOINT).is_file():
        raise ValueError(f"{folder} holds no checkpoint; run `python -m lessons_lib.training distill` first")
    saved = torch.load(folder / CHECKPOINT, weights_only=True)
    run = fresh(target, Recipe(**saved["recipe"]), saved["kept"])
    restore(run, saved)
    return run


def fresh(target: Decoder, recipe: Recipe, kept: Tensor) -> Run:
    """A run at its start."""
    draft = start_from(target, recipe.layers, kept)
    optimizer = torch.optim.AdamW(own_weights(draft).values(), lr=recipe.rate, betas=(0.9, 0.95), weight_decay=0.01)
    return Run(recipe, draft, optimizer)


@torch.no_grad()
def restore(run: Run, saved: dict) -> None:
    """Put a checkpoint's weights, optimizer and counters into a run."""
    for name, weight in own_weights(run.draft).items():
        weight.copy_(saved["weights"][name])
    run.optimizer.load_state_dict(saved["optimizer"])
    run.step, run.curve = saved["step"], saved["curve"]


def save(run: Run, folder: Path) -> None:
    """The checkpoint, whole or not at all, and the loss curve."""
    folder.mkdir(parents=True, exist_ok=True)
    state = {
        "recipe": asdict(run.recipe),
        "kept": run.draft.kept,
        "weights": {name: weight.detach() for name, weight in own_weights(run.draft).items()},
        "optimizer": run.optimizer.state_dict(),
        "step": run.step,
        "curve": run.curve,
    }
    part = folder / f"{CHECKPOINT}.part"
    torch.save(state, part)
    part.replace(folder / CHECKPOINT)
    (folder / CURVE).write_text(json.dumps(run.curve))
