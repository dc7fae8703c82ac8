"""The distilled draft (lesson 06): a few layers of its own, all else borrowed from its target; and its file.

Embedding and head are the target's and are not stored. The head keeps the rows of frequent tokens only (Zhao
et al. 2025, arXiv 2502.14856): all 49,152 rows would cost as much as three layers. Tokens without a row score
-inf, so a distribution still covers the whole vocabulary and no token map is needed outside.
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
from lessons_lib.quantization.formats import quantize
from lessons_lib.quantization.linear import signed_rows


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

    def score(self, final: Tensor) -> Tensor:
        """(T, D) after the final norm -> logits (T, V), -inf for tokens that are not kept."""
        return scatter(super().score(final), self.kept, self.config.vocab_size)


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


def decoder_of(network: PreTrainedModel) -> Decoder:
    """The readable decoder of a transformers model, of a draft the trimmed one. ValueError as `from_transformers`."""
    decoder, head = Decoder.from_transformers(network), network.get_output_embeddings()
    return TrimmedDecoder.of(decoder, head.kept) if isinstance(head, TrimmedHead) else decoder


def draft_format(model) -> str | None:
    """The `weights` in which one-token passes of this model are fastest, if it is one of our drafts.

    "int8-weight-only" for bf16 on a CPU; None, as they are, for all else. model: a LanguageModel.
    """
    trimmed = isinstance(model.network.get_output_embeddings(), TrimmedHead)
    return "int8-weight-only" if trimmed and model.dtype == torch.bfloat16 and model.device == "cpu" else None


def scored(network: PreTrainedModel) -> int | None:
    """How many tokens the head of a draft scores; None for a whole head."""
    head = network.get_output_embeddings()
    return len(head.kept) if isinstance(head, TrimmedHead) else None


def start_from(target: Decoder, layers: Sequence[int], kept: Tensor) -> TrimmedDecoder:
    """An untrained draft: copies of the target's layers with these numbers (0 is the first), float32, trainable.

    kept (K,): tokens that its head scores. ValueError for a layer that the target lacks.
    """
    if not layers or not all(0 <= number < target.config.num_layers for number in layers):
        raise ValueError(
            f"layers {list(layers)} cannot be copied; choose numbers from 0 to {target.config.num_layers - 1}"
        )
    exact = torch.promote_types(target.embedding.weight.dtype, torch.float32)
    with torch.device("meta"):
        draft = Decoder(replace(target.config, num_layers=len(layers)))
    for ours, number in zip(draft.layers, layers, strict=True):
        state = target.layers[number].state_dict()
        ours.load_state_dict({name: value.to(exact).clone() for name, value in state.items()}, assign=True)
    draft.embedding.weight = nn.Parameter(target.embedding.weight.to(exact), requires_grad=False)
    draft.head.weight = nn.Parameter(target.head.weight.to(exact), requires_grad=False)
    draft.norm = nn.Parameter(target.norm.to(exact).clone())
    draft.cos, draft.sin = target.cos.to(exact), target.sin.to(exact)
    trimmed = TrimmedDecoder.of(draft, kept.to(draft.norm.device))
    for weight in own_weights(trimmed).values():
        weight.requires_grad_(True)
    return trimmed


def own_weights(draft: TrimmedDecoder) -> dict[str, nn.Parameter]:
    """What a draft does not borrow: its layers and the final norm."""
    borrowed = ("embedding.weight", "head.weight")
    return {name: weight for name, weight in draft.named_parameters() if name not in borrowed}


def save_draft(draft: TrimmedDecoder, folder: Path, target: str, **card) -> None:
    """Store what the draft does not borrow: its matrices in 8 bits with a scale per row, its norms, and its card.

    target: the name of the model that it borrows from. ValueError for weights that are not finite.
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
    """The stored draft of this name or folder, with its target's embedding and head, in its target's dtype and device.

    ValueError for a target that the readable decoder does not compute.
    """
    stored = trained.read_weights(name)
    config = type(target.config).from_dict(target.config.to_dict())
    config.num_hidden_layers = trained.read_card(name)["layers"]
    with torch.device("meta"):
        network = DraftForCausalLM(config)
    weights = their_names(restored(stored), decoder_config(config))
    weights = {name: weight.to(target.device, target.dtype) for name, weight in weights.items()}
    weights["model.embed_tokens.weight"] = target.get_input_embeddings().weight.detach()
    network.load_state_dict(weights, strict=False, assign=True)
    network.model.rotary_emb = target.model.rotary_emb
    network.generation_config = target.generation_config
    head = network.get_input_embeddings() if head_is_embedding(target) else target.get_output_embeddings()
    return network.trim(stored["kept"].long(), head.weight).eval().requires_grad_(False)


def restored(stored: dict[str, Tensor]) -> dict[str, Tensor]:
    """Stored tensors -> weights by our names: codes (N, K) times scales (N,), norms (D,) as they are."""
    scales = {name: stored[f"{name}.scales"] for name in stored if f"{name}.scales" in stored}
    return {
        name: value.float() * scales[name][:, None] if name in scales else value
        for name, value in stored.items()
        if name != "kept" and not name.endswith(".scales")
    }
