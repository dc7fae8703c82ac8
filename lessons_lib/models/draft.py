"""The distilled draft model (lesson 06) and its file: a few layers of its own, embedding and head from its target.

The target's embedding and head are not stored. The head keeps only the rows of frequent tokens (Zhao et al. 2025, arXiv
2502.14856): all 49,152 rows would cost as much as three layers. Tokens without a row score -inf, so a distribution
still covers the whole vocabulary and no token map is needed outside.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import LlamaForCausalLM, PreTrainedModel

from lessons_lib.models import trained
from lessons_lib.models.checkpoint import head_is_embedding, their_names
from lessons_lib.models.decoder import Decoder, decoder_config
from lessons_lib.quantization.integers import quantize
from lessons_lib.quantization.linear import signed_rows


class TrimmedDecoder(Decoder):
    """A decoder whose head scores only the tokens `kept` (K,), ascending."""

    @classmethod
    def of(cls, decoder: Decoder, kept: Tensor) -> "TrimmedDecoder":
        """The decoder with its head trimmed to `kept` (K,); all other weights are shared."""
        with torch.device("meta"):
            trimmed = cls(replace(decoder.config, tie_word_embeddings=False))
        trimmed.config = decoder.config
        trimmed.embedding, trimmed.layers, trimmed.norm = decoder.embedding, decoder.layers, decoder.norm
        trimmed.cos, trimmed.sin = decoder.cos, decoder.sin
        trimmed.head.weight = nn.Parameter(decoder.head.weight[kept], requires_grad=False)
        trimmed.register_buffer("kept", kept, persistent=False)
        return trimmed

    def score(self, final: Tensor) -> Tensor:
        """(T, D) after the final norm -> logits (T, V), -inf for tokens that are not kept."""
        return scatter(super().score(final), self.kept, self.config.vocab_size)


def scatter(scores: Tensor, kept: Tensor, vocab_size: int) -> Tensor:
    """Expand scores (..., K) of the tokens `kept` (K,) to the vocabulary (..., V), -inf elsewhere."""
    return scores.new_full((*scores.shape[:-1], vocab_size), float("-inf")).index_copy_(-1, kept, scores)


class TrimmedHead(nn.Linear):
    """The target's LM head, reduced to the rows (K, D) of the tokens `kept` (K,)."""

    kept: Tensor
    rows: Tensor

    def forward(self, states: Tensor) -> Tensor:
        """states (..., D) -> scores (..., V), -inf for tokens that are not kept."""
        return scatter(F.linear(states, self.rows), self.kept, self.out_features)


class DraftForCausalLM(LlamaForCausalLM):
    """The draft as a transformers model, for assisted generation and other libraries."""

    def trim(self, kept: Tensor, weight: nn.Parameter) -> "DraftForCausalLM":
        """From now on score only the tokens `kept` (K,), with their rows of the target's head, weight (V, D)."""
        with torch.device("meta"):
            head = TrimmedHead(weight.shape[1], weight.shape[0], bias=False)
        head.weight = weight
        head.register_buffer("kept", kept.to(weight.device), persistent=False)
        head.register_buffer("rows", weight.detach()[kept], persistent=False)
        self.set_output_embeddings(head)
        return self


def decoder_of(network: PreTrainedModel) -> Decoder:
    """The readable decoder of a transformers model; for our draft, a trimmed one."""
    decoder, head = Decoder.from_transformers(network), network.get_output_embeddings()
    return TrimmedDecoder.of(decoder, head.kept) if isinstance(head, TrimmedHead) else decoder


def draft_format(model) -> str | None:
    """The `weights` with which one-token passes of our draft are fastest; None for other models.

    "W8A16" for bf16 on a CPU; None otherwise, which keeps the weights as they are. model: a LanguageModel.
    """
    trimmed = isinstance(model.network.get_output_embeddings(), TrimmedHead)
    return "W8A16" if trimmed and model.dtype == torch.bfloat16 and model.device == "cpu" else None


def scored(network: PreTrainedModel) -> int | None:
    """Number of tokens that a draft's head scores; None for a full head."""
    head = network.get_output_embeddings()
    return len(head.kept) if isinstance(head, TrimmedHead) else None


def start_from(target: Decoder, layers: Sequence[int], kept: Tensor) -> TrimmedDecoder:
    """An untrained draft: copies of these layers of the target (0 is the first), in float32 or better, trainable.

    kept: (K,), tokens that its head scores.
    """
    if not layers or not all(0 <= number < target.config.num_layers for number in layers):
        raise ValueError(
            f"layers {list(layers)} cannot be copied; choose numbers from 0 to {target.config.num_layers - 1}"
        )
    # 1. copy the chosen layers
    exact = torch.promote_types(target.embedding.weight.dtype, torch.float32)
    with torch.device("meta"):
        draft = Decoder(replace(target.config, num_layers=len(layers)))
    for ours, number in zip(draft.layers, layers, strict=True):
        state = target.layers[number].state_dict()
        ours.load_state_dict({name: value.to(exact).clone() for name, value in state.items()}, assign=True)
    # 2. embedding and head are the target's and stay frozen; the final norm is copied
    draft.embedding.weight = nn.Parameter(target.embedding.weight.to(exact), requires_grad=False)
    draft.head.weight = nn.Parameter(target.head.weight.to(exact), requires_grad=False)
    draft.norm = nn.Parameter(target.norm.to(exact).clone())
    draft.cos, draft.sin = target.cos.to(exact), target.sin.to(exact)
    # 3. trim the head, and make the draft's own weights trainable
    trimmed = TrimmedDecoder.of(draft, kept.to(draft.norm.device))
    for weight in own_weights(trimmed).values():
        weight.requires_grad_(True)
    return trimmed


def own_weights(draft: TrimmedDecoder) -> dict[str, nn.Parameter]:
    """The weights that a draft does not share with its target: its layers and the final norm."""
    borrowed = ("embedding.weight", "head.weight")
    return {name: weight for name, weight in draft.named_parameters() if name not in borrowed}


def save_draft(draft: TrimmedDecoder, folder: Path, target: str, **card) -> None:
    """Store the draft's own weights and its card: matrices in 8 bits with a scale per row, norms in float32.

    target: name of the model that provides embedding and head. card: further entries.
    """
    tensors = {"kept": draft.kept.to(torch.int32)}
    for name, weight in own_weights(draft).items():
        if weight.ndim == 2:
            rounded = quantize(weight.float(), 8, scale_dtype=torch.float32)
            tensors[name], tensors[f"{name}.scales"] = signed_rows(rounded)
        else:
            tensors[name] = weight.float()
    trained.write(folder, tensors, target=target, layers=draft.config.num_layers, **card)


def load_draft(name: str | Path, target: PreTrainedModel) -> DraftForCausalLM:
    """Load the stored draft of this name or folder, with its target's embedding, head, dtype and device."""
    # 1. a network of the draft's size, without weights
    stored = trained.read_weights(name)
    config = type(target.config).from_dict(target.config.to_dict())
    config.num_hidden_layers = trained.read_card(name)["layers"]
    with torch.device("meta"):
        network = DraftForCausalLM(config)
    # 2. its own weights from the file, the rest shared with the target
    weights = their_names(restored(stored), decoder_config(config))
    weights = {name: weight.to(target.device, target.dtype) for name, weight in weights.items()}
    weights["model.embed_tokens.weight"] = target.get_input_embeddings().weight.detach()
    network.load_state_dict(weights, strict=False, assign=True)
    network.model.rotary_emb = target.model.rotary_emb
    network.generation_config = target.generation_config
    head = network.get_input_embeddings() if head_is_embedding(target) else target.get_output_embeddings()
    return network.trim(stored["kept"].long(), head.weight).eval().requires_grad_(False)


def restored(stored: dict[str, Tensor]) -> dict[str, Tensor]:
    """Dequantize stored tensors to weights under our names: codes (N, K) times scales (N,), norms (D,) as they are."""
    scales = {name: stored[f"{name}.scales"] for name in stored if f"{name}.scales" in stored}
    return {
        name: value.float() * scales[name][:, None] if name in scales else value
        for name, value in stored.items()
        if name != "kept" and not name.endswith(".scales")
    }
