"""A draft as a file (lesson 06): layers in 8 bits, final norm, which tokens it scores; the rest is its target's."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

from lessons_lib.models.checkpoint import head_is_embedding, their_names
from lessons_lib.models.decoder import decoder_config
from lessons_lib.models.draft import DraftForCausalLM, TrimmedDecoder, own_weights
from lessons_lib.quantization.cpu import signed_rows
from lessons_lib.quantization.formats import quantize

WEIGHTS, CARD = "draft.safetensors", "draft.json"


def save_draft(draft: TrimmedDecoder, folder: Path, target: str, **card) -> None:
    """Write what the draft does not borrow, its matrices in 8 bits, and the card that says how it was made.

    ValueError for weights that are not finite.
    """
    tensors = {"kept": draft.kept.to(torch.int32)}
    for name, weight in own_weights(draft).items():
        if weight.ndim == 2:
            rounded = quantize(weight.float(), 8, scale_dtype=torch.float32)
            tensors[name], tensors[f"{name}.scales"] = signed_rows(rounded)
        else:
            tensors[name] = weight.detach().float()
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: value.contiguous().cpu() for name, value in tensors.items()}, folder / WEIGHTS)
    card = {"target": target, "layers": draft.config.num_layers} | card
    (folder / CARD).write_text(json.dumps(card, indent=1) + "\n")


def load_draft(folder: Path, target: PreTrainedModel) -> DraftForCausalLM:
    """The draft stored in `folder`, with the embedding and head of its target, in the target's dtype and device.

    ValueError for a target that the readable decoder does not compute.
    """
    stored = load_file(folder / WEIGHTS)
    config = type(target.config).from_dict(target.config.to_dict())
    config.num_hidden_layers = json.loads((folder / CARD).read_text())["layers"]
    config.intermediate_size = stored["layers.0.down.weight"].shape[1]
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
    """Stored tensors -> weights by our names: levels (N, K) times scales (N,), norms (D,) as they are."""
    scaled = {name: stored[f"{name}.scales"] for name in stored if f"{name}.scales" in stored}
    return {
        name: value.float() * scaled[name][:, None] if name in scaled else value
        for name, value in stored.items()
        if name != "kept" and not name.endswith(".scales")
    }
