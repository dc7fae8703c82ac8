"""Tiny random models of kinds that `lessons_lib.models.tiny` does not make: other positions, windows and states."""

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    Gemma3Config,
    Gemma3TextConfig,
    GenerationConfig,
    PreTrainedModel,
    SiglipVisionConfig,
)

V = 61
LAYERS = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48)
KV = LAYERS | dict(num_key_value_heads=2, head_dim=8, max_position_embeddings=128)
BART = dict(
    d_model=32, decoder_layers=2, encoder_layers=2, decoder_attention_heads=4, decoder_ffn_dim=48, dropout=0.0,
    attention_dropout=0.0, activation_dropout=0.0,
)  # fmt: skip
NAMED_OTHERWISE = dict(n_embd=32, n_layer=2, n_head=4, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
ALIBI = dict(d_model=32, n_layers=2, n_heads=4)

# kind -> its model type and sizes
SIZES: dict[str, tuple[str, dict]] = {
    "positions in a table": ("gpt2", NAMED_OTHERWISE | dict(n_positions=128)),
    "positions after a padding id": ("roberta", KV | dict(is_decoder=True, hidden_dropout_prob=0.0)),
    "positions counted from the cache": ("bart", BART | dict(max_position_embeddings=128)),
    "no logits_to_keep": ("whisper", BART | dict(max_target_positions=128)),
    "ALiBi": ("mpt", ALIBI | dict(max_seq_len=128)),
    "a window by another name": (
        "gpt_neo",
        dict(hidden_size=32, num_layers=2, num_heads=4, attention_types=[[["global", "local"], 1]], window_size=8),
    ),
    "a window in some layers": (
        "gemma2",
        KV | dict(sliding_window=8, layer_types=["sliding_attention", "full_attention"]),
    ),
    "no cache": ("openai-gpt", NAMED_OTHERWISE | dict(n_positions=128)),
    "recurrent": ("mamba", dict(hidden_size=32, num_hidden_layers=2, state_size=8)),
    "recurrent, state under another name": ("rwkv", dict(hidden_size=32, num_hidden_layers=2)),
    "convolutions and attention": ("lfm2", KV | dict(layer_types=["conv", "full_attention"])),
    "linear and full attention": (
        "qwen3_5_text",
        KV
        | dict(
            layer_types=["linear_attention", "full_attention"], linear_num_key_heads=2, linear_num_value_heads=4,
            linear_key_head_dim=8, linear_value_head_dim=8,
        ),
    ),
}  # fmt: skip


def model_of(kind: str, **sizes) -> PreTrainedModel:
    """A random float64 model of the kind, without end token, sharp enough that its argmax depends on the text."""
    family, own = SIZES[kind]
    ends = dict(pad_token_id=0, bos_token_id=1, eos_token_id=2, tie_word_embeddings=False)
    return sharpened(AutoConfig.for_model(family, vocab_size=V, **own | ends | sizes))


def image_and_text_model(window: int) -> PreTrainedModel:
    """Gemma 3 as it is loaded for images and text: window and context stand in the config of its text part."""
    kinds = ["sliding_attention", "full_attention"]
    sizes = KV | dict(vocab_size=V, max_position_embeddings=64, sliding_window=window)
    text = Gemma3TextConfig(**sizes, layer_types=kinds)
    image = dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    vision = SiglipVisionConfig(**image, image_size=16, patch_size=8)
    ids = dict(boi_token_index=57, eoi_token_index=58, image_token_index=59)
    return sharpened(Gemma3Config(text_config=text, vision_config=vision, mm_tokens_per_image=4, **ids))


def sharpened(config) -> PreTrainedModel:
    network = AutoModelForCausalLM.from_config(config, dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, weight in network.named_parameters():
            if weight.dim() > 1:
                size = 1.0 if "emb" in name or "wte" in name or "wpe" in name else 1.5 / weight.shape[-1] ** 0.5
                weight.copy_(size * torch.randn(weight.shape, generator=generator, dtype=torch.float64))
    network.generation_config = GenerationConfig(pad_token_id=0)
    return network.eval()
