"""Early exits (lesson 13): logits after any layer, an adapter for one exit, and the file of the fine-tuned model.

An exit reads the hidden state after layer E with the model's own final norm and head (Elhoushi et al. 2024, LayerSkip,
arXiv 2404.16710). The weights in smol-layerskip are LoRA matrices that improve all exits of the model at once, and an
ExitAdapter, which improves one exit of the unchanged model.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lessons_lib.models import trained
from lessons_lib.models.decoder import Decoder, NoCache, Segment
from lessons_lib.models.lora import adapted, adapters, merge_in_place

LAYERSKIP = "smol-layerskip"


@torch.no_grad()
def exit_logits(decoder: Decoder, ids: Sequence[int]) -> Iterator[Tensor]:
    """Logits (T, V) of a text of T ids after each layer, the first layer's first; the last are the model's own."""
    at = decoder.norm.device
    segment = Segment(torch.arange(len(ids), device=at), NoCache())
    exits = range(1, len(decoder.layers) + 1)
    states = decoder(torch.tensor(list(ids), device=at), [segment], after=exits).after
    for layer in exits:
        yield decoder.logits(states[layer])


class ExitAdapter(nn.Module):
    """A correction of the hidden state before an exit's norm and head: u(h) = h + W2 silu(W1 h).

    exit_layer: E, the number of layers that ran. W1 (D/2, D), W2 (D, D/2). W2 starts at zero, so at first u(h) = h.
    The model is not changed: only draft tokens are chosen from u(h).
    """

    def __init__(self, width: int, exit_layer: int, generator: torch.Generator | None = None):
        super().__init__()
        self.exit_layer = exit_layer
        self.W1 = nn.Parameter(torch.randn(width // 2, width, generator=generator) * width**-0.5)
        self.W2 = nn.Parameter(torch.zeros(width, width // 2))

    def forward(self, states: Tensor) -> Tensor:
        """Hidden states (..., D) after layer E -> (..., D), before the final norm."""
        return states + F.linear(F.silu(F.linear(states, self.W1)), self.W2)


# --- Stored weights


def save_layerskip(
    folder: Path,
    lora: dict[str, Tensor],
    rank: int,
    alpha: float,
    adapter: ExitAdapter,
    base: str,
    **card,
) -> None:
    """Store the LoRA matrices, by the names of `lora.adapters`, and an exit adapter, all in bf16, with their card.

    base: name of the model that the LoRA matrices change, and that the exit adapter is for. card: further entries.
    """
    tensors = {f"lora.{name}": value for name, value in lora.items()}
    tensors |= {f"exit.{name}": value for name, value in adapter.named_parameters()}
    tensors = {name: value.to(torch.bfloat16) for name, value in tensors.items()}
    trained.write(folder, tensors, base=base, rank=rank, alpha=alpha, exit_layer=adapter.exit_layer, **card)


@torch.no_grad()
def fine_tune(network, name: str | Path) -> None:
    """Add the stored LoRA matrices of this name or folder to the weights of a transformers model, in place."""
    stored, card = trained.read_weights(name), trained.read_card(name)
    # the decoder's fused matrices are the network's memory, so what is added to them is added to the network
    decoder = adapted(Decoder.from_transformers(network), card["rank"], card["alpha"])
    for key, weight in adapters(decoder).items():
        weight.copy_(stored[f"lora.{key}"])
    merge_in_place(decoder)


def load_exit(model) -> ExitAdapter:
    """Load the stored exit adapter of the unchanged model, on its device and in its dtype. model: a LanguageModel.

    Raises ModelUnavailable if none is stored, ValueError if it is another model's.
    """
    stored, card = trained.read_weights(LAYERSKIP), trained.read_card(LAYERSKIP)
    if model.name != card["base"]:
        raise ValueError(
            f"the exit adapter in {LAYERSKIP} is for {card['base']}, not for {model.name}; train another one with "
            "`python -m lessons_lib.training layerskip-exit`."
        )
    weights = {key.removeprefix("exit."): value for key, value in stored.items() if key.startswith("exit.")}
    adapter = ExitAdapter(weights["W1"].shape[1], card["exit_layer"])
    adapter.load_state_dict(weights)
    return adapter.to(model.device, model.dtype).eval().requires_grad_(False)
