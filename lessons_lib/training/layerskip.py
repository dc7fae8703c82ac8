"""LayerSkip's training (lesson 13): layer dropout and early-exit loss, so that every layer can end the model.

Elhoushi et al. 2024 (arXiv 2404.16710). A trained exit drafts well: the model decodes by itself, drafting with its
first layers and verifying with the rest. Here the model is frozen and LoRA adapters are trained on text-to-SQL.
Only the answer's tokens count in the loss.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from lessons_lib.measure.clock import resampled
from lessons_lib.models.decoder import Decoder, NoCache, Segment, with_attention
from lessons_lib.models.lora import adapted, adapters
from lessons_lib.training.collect import Text, batches
from lessons_lib.training.loop import TrainingRun, resume, stored, train, update

ROWS = 1024  # positions whose logits are in memory at a time
EXITS = (6, 10, 15, 20, 30)  # exits whose exact matches are kept text by text


@dataclass(frozen=True)
class LayerSkipRecipe:
    """Hyperparameters of the fine-tuning.

    rank, alpha: of the adapters. p_max: dropout rate of the last layer. e_scale: weight of the early exits. curriculum:
    which exits count at a step, one of CURRICULA ("last" trains none but the last layer). period: of the rotational
    curriculum. steps, tokens (prompts included, per step), rate, warmup, seed: as in `distill.Recipe`.
    """

    rank: int = 16
    alpha: float = 32.0
    p_max: float = 0.1
    e_scale: float = 1.0
    curriculum: str = "rotational"
    period: int = 6
    steps: int = 1_200
    tokens: int = 8_192
    rate: float = 4e-3
    warmup: int = 60
    seed: int = 0

    def __post_init__(self):
        if self.curriculum not in CURRICULA:
            raise ValueError(f"curriculum={self.curriculum!r} is not known; choose one of: {', '.join(CURRICULA)}.")


# --- Layer dropout: x + M f(x), where M is 0 with a rate that grows from layer to layer


def dropout_rates(num_layers: int, p_max: float) -> Tensor:
    """Dropout rate (L,) of each layer: p_max D(l), where D(l) = exp(l ln 2 / (L - 1)) - 1 goes from 0 to 1.

    For fine-tuning the rates are the same at every step; only training from scratch raises them with time.
    """
    depth = torch.arange(num_layers, dtype=torch.float64) / max(1, num_layers - 1)
    return p_max * (torch.exp(depth * math.log(2)) - 1)


class LayerDropout:
    """Draws, for every layer and every text of a batch, whether the text skips the layer.

    Each layer has a generator of its own: with a common seed, layers would drop the same texts. Nothing is rescaled.
    """

    def __init__(self, rates: Tensor, seed: int):
        self.rates = rates
        self.generators = [torch.Generator().manual_seed(seed * len(rates) + layer) for layer in range(len(rates))]

    def keep(self, texts: int) -> list[Tensor]:
        """Indices (K,) of the texts that each layer processes."""
        draws = torch.stack([torch.rand(texts, generator=generator) for generator in self.generators])
        return [row.nonzero()[:, 0] for row in draws >= self.rates[:, None]]


# --- Early-exit loss: a weighted sum of the losses of all exits that the curriculum enables


def exit_weights(num_layers: int, e_scale: float, enabled: Tensor) -> Tensor:
    """Weight (L,) of the loss after each layer; they sum to 1. enabled (L,) bool: by the curriculum, the last one on.

    e(l) = e_scale l (l + 1) / 2, so later exits count more, and (L - 1) + e_scale (L - 2)(L - 1) / 2 for the last one.
    The exit after the first layer, l = 0, never counts.
    """
    layers = torch.arange(num_layers, dtype=torch.float64)
    weights = e_scale * layers * (layers + 1) / 2
    weights[-1] = (num_layers - 1) + e_scale * (num_layers - 2) * (num_layers - 1) / 2
    weights = weights * enabled
    return weights / weights.sum()


def rotational(step: int, num_layers: int, period: int) -> Tensor:
    """Enabled exits (L,) bool: every period-th layer, one further at each step, and the last one always."""
    enabled = (torch.arange(num_layers) - step) % period == 0
    enabled[-1] = True
    return enabled


def gradual(step: int, num_layers: int, steps: int) -> Tensor:
    """Enabled exits (L,) bool: the last one, and every steps / (2 L) steps one more before it; all after half."""
    enabled = 2 * num_layers * step >= steps * (num_layers - torch.arange(num_layers))
    enabled[-1] = True
    return enabled


CURRICULA: dict[str, Callable[[int, int, LayerSkipRecipe], Tensor]] = {
    "gradual": lambda step, layers, recipe: gradual(step, layers, recipe.steps),
    "rotational": lambda step, layers, recipe: rotational(step, layers, recipe.period),
    "last": lambda step, layers, recipe: torch.arange(layers) == layers - 1,  # ordinary fine-tuning
}


# --- A padded batch: attention is one call for all texts


@dataclass
class Batch:
    """Texts of a batch, padded on the right: ids (B, T).

    rows (N,): flat positions whose next token is in an answer. labels (N,): those tokens. owner (N,): their text.
    """

    ids: Tensor
    rows: Tensor
    labels: Tensor
    owner: Tensor

    @classmethod
    def of(cls, texts: Sequence[Text], device: torch.device | str = "cpu") -> "Batch":
        """Pad these texts, each without its last token, which is only predicted."""
        longest = max(len(text.ids) for text in texts) - 1
        ids = torch.tensor([text.ids[:-1] + [0] * (longest + 1 - len(text.ids)) for text in texts])
        answers = [range(text.prompt_length, len(text.ids)) for text in texts]
        rows = [longest * n + at - 1 for n, answer in enumerate(answers) for at in answer]
        labels = [text.ids[at] for text, answer in zip(texts, answers, strict=True) for at in answer]
        owner = [n for n, answer in enumerate(answers) for _ in answer]
        return cls(ids.to(device), *(torch.tensor(values, device=device) for values in (rows, labels, owner)))

    def answers(self, states: Tensor) -> Tensor:
        """Hidden states (B, T, D) -> those that predict the answers (N, D)."""
        return states.flatten(0, 1).index_select(0, self.rows)


class PaddedDecoder:
    """Runs a decoder over padded batches. Padding is on the right, where causal attention never looks, so no mask.

    Shares the decoder's weights. A forward pass of the packed decoder would call attention once per text.
    """

    def __init__(self, decoder: Decoder):
        self.length = 1
        self.decoder = with_attention(decoder, self._attend)

    def states(self, ids: Tensor, dropout: LayerDropout | None = None) -> Iterator[Tensor]:
        """Hidden states (B, T, D) after each layer of texts ids (B, T). dropout: only in training."""
        texts, self.length = ids.shape
        layers = self.decoder.layers
        kept = dropout.keep(texts) if dropout else [torch.arange(texts)] * len(layers)
        kept = torch.cat(kept).to(ids.device).split([len(those) for those in kept])  # one transfer, not one per layer
        positions = torch.arange(self.length, device=ids.device).repeat(texts)
        cos, sin = self.decoder.cos[positions][:, None], self.decoder.sin[positions][:, None]

        def block(layer, x: Tensor) -> Tensor:
            rows = x.flatten(0, 1)
            segment = Segment(positions[: len(rows)], NoCache())
            return layer(rows, cos[: len(rows)], sin[: len(rows)], [segment]).view_as(x)

        x = self.decoder.embedding(ids)
        for layer, those in zip(layers, kept, strict=True):
            if len(those) == texts:
                x = block(layer, x)
            elif len(those):  # run the layer on the texts that keep it; the others pass unchanged
                x = x.index_copy(0, those, block(layer, x.index_select(0, those)))
            yield x

    def _attend(self, q: Tensor, keys: Tensor, values: Tensor, mask: None) -> Tensor:
        """As `attend`, for B texts of T tokens each: q (H, B T, d), keys and values (H_kv, B T, d) -> (H, B T, d)."""
        q, keys, values = (x.unflatten(1, (-1, self.length)).transpose(0, 1) for x in (q, keys, values))
        grouped = q.shape[1] > keys.shape[1]
        out = F.scaled_dot_product_attention(q, keys, values, is_causal=True, enable_gqa=grouped)
        return out.transpose(0, 1).flatten(1, 2)


# --- Training


@dataclass(kw_only=True)
class LayerSkipRun(TrainingRun):
    """Training run of adapters; its curve has the weighted loss, the last layer's loss and the number of exits."""

    model: Decoder  # the frozen decoder with adapters
    padded: PaddedDecoder
    dropout: LayerDropout

    def state(self) -> dict:
        return {"dropout": [generator.get_state() for generator in self.dropout.generators]}


def fresh(decoder: Decoder, recipe: LayerSkipRecipe, saved: dict) -> LayerSkipRun:
    """A new run. saved: a checkpoint to take the state of layer dropout from ({}: none)."""
    model = adapted(decoder, recipe.rank, recipe.alpha, recipe.seed)
    weights = adapters(model)
    optimizer = torch.optim.AdamW(weights.values(), lr=recipe.rate, weight_decay=0.0)
    dropout = LayerDropout(dropout_rates(len(model.layers), recipe.p_max), recipe.seed)
    if saved:
        for generator, state in zip(dropout.generators, saved["dropout"], strict=True):
            generator.set_state(state)
    return LayerSkipRun(
        recipe=recipe,
        model=model,
        padded=PaddedDecoder(model),
        dropout=dropout,
        weights=weights,
        optimizers=[optimizer],
    )


def trained(decoder: Decoder, folder: Path) -> LayerSkipRun:
    """The run stored in `folder`. Raises ValueError if there is none."""
    return stored(LayerSkipRecipe, folder, partial(fresh, decoder))


def train_layerskip(
    decoder: Decoder,
    texts: Sequence[Text],
    recipe: LayerSkipRecipe,
    folder: Path,
    minutes: float | None = None,
    *,
    fast: bool = False,
) -> LayerSkipRun:
    """Train adapters of a frozen decoder (float32 or float64), or continue the run in `folder`.

    fast: matmuls in bf16; weights stay as they are. Raises ValueError if the folder holds a run of another recipe.
    """
    run = resume(recipe, folder, partial(fresh, decoder))
    lengths = [len(text.ids) for text in texts]
    train(run, lengths, lambda which: train_step(run, [texts[i] for i in which], fast), folder, minutes, "LayerSkip")
    return run


def train_step(run: LayerSkipRun, texts: Sequence[Text], fast: bool = False) -> None:
    """One update: forward with layer dropout, the losses of the enabled exits, one backward pass."""
    recipe, num_layers = run.recipe, len(run.model.layers)
    weights = exit_weights(num_layers, recipe.e_scale, CURRICULA[recipe.curriculum](run.step, num_layers, recipe))
    device = run.model.norm.device
    batch = Batch.of(texts, device)
    run.optimizers[0].zero_grad()
    with torch.autocast(device.type, torch.bfloat16) if fast else nullcontext():
        # 1. the states of the answers' positions, at every exit that counts
        states = enumerate(run.padded.states(batch.ids, run.dropout if recipe.p_max else None))
        exits = {layer: batch.answers(x) for layer, x in states if weights[layer] > 0}
        # 2. each exit's gradient with respect to its state; its logits are freed before the next exit's
        losses, gradients = {}, []
        for layer, state in exits.items():
            losses[layer], gradient = exit_loss(run.model, state.detach(), batch.labels, float(weights[layer]))
            gradients.append(gradient)
    # 3. one backward pass through the layers
    torch.autograd.backward(list(exits.values()), gradients)
    found = torch.stack(list(losses.values())).double().cpu()
    loss = float((found * weights[list(losses)]).sum())
    update(run, {"loss": round(loss, 5), "last": round(float(found[-1]), 5), "exits": len(exits)})


def exit_loss(decoder: Decoder, states: Tensor, labels: Tensor, weight: float) -> tuple[Tensor, Tensor]:
    """Mean cross-entropy () of an exit in nats, and the gradient (N, D) of weight times it.

    states (N, D): after a layer, without a graph. labels (N,).
    """
    cut, total = states.requires_grad_(), torch.zeros((), device=states.device)
    for rows, wanted in zip(cut.split(ROWS), labels.split(ROWS), strict=True):
        surprise = F.cross_entropy(_exact(decoder.logits(rows)), wanted, reduction="sum")
        (surprise * (weight / len(labels))).backward()
        total = total + surprise.detach()
    return total / len(labels), cut.grad


def _exact(logits: Tensor) -> Tensor:
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


# --- Evaluation


@torch.no_grad()
def evaluate_exits(decoder: Decoder, texts: Sequence[Text], size: int = 64) -> dict:
    """Quality of every exit on the answers of these texts. size: texts per forward pass, of like length.

    loss (L,): mean cross-entropy in nats per answer token, end token included. entropy: of the last layer's
    distribution. accuracy (L,): share of tokens where the exit's argmax is right. agreement (L,): where it is the last
    layer's argmax. exact_match (L,): share of texts where it is right everywhere, which is exact match of greedy
    decoding with the first layers alone. exact: the same for each text as a string of 0 and 1, for EXITS and the last.
    """
    padded, layers, device = PaddedDecoder(decoder), len(decoder.layers), decoder.norm.device
    sums = torch.zeros(3, layers, dtype=torch.float64, device=device)  # loss, right, agreeing
    entropy, exact = torch.zeros((), dtype=torch.float64, device=device), torch.zeros(layers, len(texts))
    order = sorted(range(len(texts)), key=lambda n: len(texts[n].ids))  # texts of like length need little padding
    for those in batches(order, size):
        batch = Batch.of([texts[n] for n in those], device)
        states = [batch.answers(x) for x in padded.states(batch.ids)]
        last = torch.cat([decoder.logits(rows).argmax(-1) for rows in states[-1].split(ROWS)])
        for layer, state in enumerate(states):
            best = []
            for rows, wanted in zip(state.split(ROWS), batch.labels.split(ROWS), strict=True):
                log_p = _exact(decoder.logits(rows)).log_softmax(-1)
                best.append(log_p.argmax(-1))
                sums[0, layer] -= log_p.gather(-1, wanted[:, None]).sum()
                if layer == layers - 1:
                    entropy -= (log_p.exp() * log_p).sum()
            best = torch.cat(best)
            right = best == batch.labels
            sums[1, layer] += right.sum()
            sums[2, layer] += (best == last).sum()
            wrong = torch.zeros(len(those), device=device).index_add_(0, batch.owner, (~right).float())
            exact[layer, those] = (wrong == 0).float().cpu()
    count = sum(len(text.ids) - text.prompt_length for text in texts)
    loss, accuracy, agreement = (sums / count).tolist()
    return {
        "texts": len(texts),
        "tokens": count,
        "loss": loss,
        "entropy": float(entropy / count),
        "accuracy": accuracy,
        "agreement": agreement,
        "exact_match": exact.mean(1).tolist(),
        "exact": {str(e): "".join(str(int(x)) for x in exact[e - 1]) for e in sorted({*EXITS, layers}) if e <= layers},
    }


def points_lost(ours: dict[str, str], control: dict[str, str]) -> dict:
    """Points of exact match that the last layer loses against the control: value and 95% interval, paired by text.

    ours, control: `exact` of `evaluate_exits`.
    """
    last = str(max(map(int, ours)))
    gaps = np.array([int(b) - int(a) for a, b in zip(ours[last], control[last], strict=True)])
    value, low, high = (100 * share for share in resampled(lambda texts: gaps[texts].mean(-1), len(gaps)))
    return {"value": value, "low": low, "high": high, "texts": len(gaps)}
