"""A small draft of a larger model (lesson 06): a few layers of its own, all else borrowed from its target.

Embedding and head are the target's and are not stored. The head keeps the rows of frequent tokens only (Zhao
et al. 2025, arXiv 2502.14856): all 49,152 rows would cost as much as three layers. Tokens without a row score
-inf, so a distribution still covers the whole vocabulary and no token map is needed outside.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import LlamaForCausalLM, PreTrainedModel

from lessons_lib.models.decoder import Decoder
from lessons_lib.models.kernels import Kernels
from lessons_lib.models.quantized import quantized


class TrimmedDecoder(Decoder):
    """A decoder whose head scores the tokens `kept` (K,), ascending, and no others."""

    @classmethod
    def of(cls, decoder: Decoder, kept: Tensor) -> "TrimmedDecoder":
        """decoder with its head cut down to `kept` (K,); all else is shared."""
        with torch.device("meta"):
            trimmed = cls(replace(decoder.config, tie_word_embeddings=False))
        trimmed.config = decoder.config
        trimmed.embedding, trimmed.layers, trimmed.norm = decoder.embedding, decoder.layers, decoder.norm
        trimmed.cos, trimmed.sin = decoder.cos, decoder.sin
        trimmed.head.weight = nn.Parameter(decoder.head.weight[kept], requires_grad=False)
        trimmed.register_buffer("kept", kept, persistent=False)
        return trimmed

    def score(self, final: Tensor, kernels: Kernels | None = None) -> Tensor:
        """(T, D) after the final norm -> scores (T, V), -inf for tokens that are not kept."""
        return scatter(super().score(final, kernels), self.kept, self.config.vocab_size)


def scatter(scores: Tensor, kept: Tensor, vocab_size: int) -> Tensor:
    """scores (..., K) of the tokens `kept` (K,) -> (..., V), -inf elsewhere."""
    return scores.new_full((*scores.shape[:-1], vocab_size), float("-inf")).index_copy_(-1, kept, scores)


class TrimmedHead(nn.Linear):
    """The target's head, of which only the rows (K, D) of `kept` (K,) are computed."""

    kept: Tensor
    rows: Tensor

    def forward(self, states: Tensor) -> Tensor:
        """states (..., D) -> scores (..., V), -inf for tokens that are not kept."""
        return scatter(F.linear(states, self.rows), self.kept, self.out_features)


class DraftForCausalLM(LlamaForCausalLM):
    """A draft as a transformers model: what assisted generation and other peers take."""

    def trim(self, kept: Tensor, weight: nn.Parameter) -> "DraftForCausalLM":
        """Score the tokens `kept` (K,) alone from now on, by their rows of the target's head, weight (V, D)."""
        with torch.device("meta"):
            head = TrimmedHead(weight.shape[1], weight.shape[0], bias=False)
        head.weight = weight
        head.register_buffer("kept", kept.to(weight.device), persistent=False)
        head.register_buffer("rows", weight.detach()[kept], persistent=False)
        self.set_output_embeddings(head)
        return self


def decoder_of(network: PreTrainedModel, wide: bool = False) -> Decoder:
    """The readable decoder of a transformers model, of a draft the trimmed one in the weights that suit it.

    wide: with weights as they are, whatever suits. ValueError as `Decoder.from_transformers`.
    """
    decoder, head = Decoder.from_transformers(network), network.get_output_embeddings()
    if not isinstance(head, TrimmedHead):
        return decoder
    trimmed = TrimmedDecoder.of(decoder, head.kept)
    return quantized(trimmed, "int8-weight-only") if in_eight_bits(network) and not wide else trimmed


def in_eight_bits(network: PreTrainedModel) -> bool:
    """Whether the readable decoder of this network has weights of 8 bits: drafts in bf16 on a CPU do."""
    trimmed = isinstance(network.get_output_embeddings(), TrimmedHead)
    return trimmed and network.dtype == torch.bfloat16 and network.device.type == "cpu"


def scored(network: PreTrainedModel) -> int | None:
    """How many tokens the head of a draft scores; None for a whole head."""
    head = network.get_output_embeddings()
    return len(head.kept) if isinstance(head, TrimmedHead) else None


def start_from(target: Decoder, layers: Sequence[int], kept: Tensor, mlp: int = 0) -> TrimmedDecoder:
    """An untrained draft: copies of the target's layers with these numbers (0 is the first), float32, trainable.

    kept (K,): tokens that its head scores. mlp: neurons of every MLP that are copied, those that write most (0: all).
    ValueError for a layer or so many neurons that the target lacks.
    """
    if not layers or not all(0 <= number < target.config.num_layers for number in layers):
        raise ValueError(
            f"layers {list(layers)} cannot be copied; choose numbers from 0 to {target.config.num_layers - 1}"
        )
    if not 0 <= mlp <= target.config.intermediate_size:
        raise ValueError(f"an MLP has {target.config.intermediate_size} neurons, of which {mlp} cannot be copied")
    mlp, exact = (
        mlp or target.config.intermediate_size,
        torch.promote_types(target.embedding.weight.dtype, torch.float32),
    )
    with torch.device("meta"):
        draft = Decoder(replace(target.config, num_layers=len(layers), intermediate_size=mlp))
    for ours, theirs in zip(draft.layers, layers, strict=True):
        state = narrowed(target.layers[theirs].state_dict(), mlp)
        ours.load_state_dict({name: value.to(exact).clone() for name, value in state.items()}, assign=True)
    draft.embedding.weight = nn.Parameter(target.embedding.weight.to(exact), requires_grad=False)
    draft.head.weight = nn.Parameter(target.head.weight.to(exact), requires_grad=False)
    draft.norm = nn.Parameter(target.norm.to(exact).clone())
    draft.cos, draft.sin = target.cos.to(exact), target.sin.to(exact)
    trimmed = TrimmedDecoder.of(draft, kept.to(draft.norm.device))
    for weight in own_weights(trimmed).values():
        weight.requires_grad_(True)
    return trimmed


def narrowed(layer: dict[str, Tensor], mlp: int) -> dict[str, Tensor]:
    """A layer's weights with the `mlp` neurons that write most: whose columns of "down" (D, D_ff) are longest."""
    best = layer["down.weight"].norm(dim=0).topk(mlp).indices.sort().values
    gate, up = layer["gate_up.weight"].chunk(2)
    down = layer["down.weight"][:, best]
    return layer | {"gate_up.weight": torch.cat([gate[best], up[best]]), "down.weight": down}


def own_weights(draft: TrimmedDecoder) -> dict[str, nn.Parameter]:
    """What a draft does not borrow: its layers and the final norm."""
    borrowed = ("embedding.weight", "head.weight")
    return {name: weight for name, weight in draft.named_parameters() if name not in borrowed}


def own_size(draft: TrimmedDecoder) -> int:
    """How many numbers a draft does not borrow."""
    return sum(weight.numel() for weight in own_weights(draft).values())
