"""The shape of a decoder-only model: all that its bytes and FLOPs depend on (lessons 00-02).

Letters in the formulas: L layers, D width, H heads, H_kv KV heads, d head dim, D_ff MLP width, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

# int4: 4 bits and, for each group of 32 weights, a scale and a zero point of 16 bits
ELEMENT_BYTES = {"fp64": 8, "fp32": 4, "bf16": 2, "fp16": 2, "int8": 1, "int4": 0.625}
UNGATED = {
    "bloom",
    "falcon",
    "gpt2",
    "gpt_bigcode",
    "gpt_neo",
    "gpt_neox",
    "gptj",
    "opt",
    "phi",
    "starcoder2",
}


@dataclass(frozen=True)
class ModelShape:
    """Sizes of one model. window: tokens a windowed layer keeps; windowed_layers: how many do (None: all).
    head_rows: tokens that the LM head scores (None: all V); a trimmed draft's are fewer."""

    name: str
    layers: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp_width: int
    vocab_size: int
    context: int
    gated: bool = True  # three MLP matrices (SwiGLU and kin) instead of two
    tied: bool = True  # the LM head is the embedding table
    window: int | None = None
    windowed_layers: int | None = None
    head_rows: int | None = None

    @property
    def layer_weights(self) -> int:
        """N_lay: weights of the layers' matrices, each multiplied once per token."""
        attention = 2 * self.width * (self.heads + self.kv_heads) * self.head_dim  # Wq, Wo and Wk, Wv
        return self.layers * (attention + (3 if self.gated else 2) * self.width * self.mlp_width)

    @property
    def head_weights(self) -> int:
        """N_head = V·D, or as many rows of it as are scored: weights of the LM head, tied or not."""
        return (self.head_rows or self.vocab_size) * self.width

    @property
    def weights(self) -> int:
        """N = N_lay + N_head: what one decode step multiplies. Embedding rows are only looked up."""
        return self.layer_weights + self.head_weights

    def params(self) -> int:
        """All parameters of a Llama, Mistral or SmolLM: N_lay, V·D for a tied head or twice that, 2L + 1 norms.

        Raises ValueError for ungated families, whose biases and position tables this shape does not know.
        """
        if not self.gated:
            raise ValueError(f"The shape of {self.name} does not tell its biases; count model.parameters() instead.")
        tables = (1 if self.tied else 2) * self.vocab_size * self.width
        return self.layer_weights + tables + (2 * self.layers + 1) * self.width

    def kept(self, tokens: int) -> int:
        """Cached positions after S `tokens`, summed over layers: L·S, in windowed layers min(S, window)."""
        windowed = self._windowed()
        return (self.layers - windowed) * tokens + windowed * min(tokens, self.window or tokens)

    def attended(self, tokens: int) -> int:
        """(query, key) pairs of a causal forward over T `tokens`, all layers: L·T(T+1)/2 without windows."""
        w, windowed = min(self.window or tokens, tokens), self._windowed()
        full, local = tokens * (tokens + 1) // 2, w * (w + 1) // 2 + (tokens - w) * w
        return (self.layers - windowed) * full + windowed * local

    def kv_elements(self, tokens: int) -> int:
        """Numbers cached for one sequence of `tokens` tokens: K and V, H_kv heads of d, every layer."""
        return 2 * self.kv_heads * self.head_dim * self.kept(tokens)

    def _windowed(self) -> int:
        if self.window is None:
            return 0
        return self.layers if self.windowed_layers is None else self.windowed_layers

    @classmethod
    def from_config(cls, config: Any, name: str = "") -> ModelShape:
        """Read a transformers config, or anything with its names. Raises ValueError if a size is missing.

        head_dim is taken from the config when present: H·d may differ from D (Gemma, Qwen3).
        """
        config = config.get_text_config() if hasattr(config, "get_text_config") else config
        heads, width = _read(config, "num_attention_heads", "n_head"), _read(config, "hidden_size", "n_embd")
        window, windowed = _window(config)
        return cls(
            name=name or getattr(config, "name_or_path", "") or getattr(config, "model_type", "model"),
            layers=_read(config, "num_hidden_layers", "n_layer"), width=width, heads=heads,
            kv_heads=getattr(config, "num_key_value_heads", None) or heads,
            head_dim=getattr(config, "head_dim", None) or width // heads,
            mlp_width=_read(config, "intermediate_size", "ffn_dim", "n_inner", default=4 * width),
            vocab_size=_read(config, "vocab_size"),
            context=_read(config, "max_position_embeddings", "n_positions", default=0),
            gated=getattr(config, "model_type", "llama") not in UNGATED,
            tied=bool(getattr(config, "tie_word_embeddings", False)),
            window=window, windowed_layers=windowed,
        )  # fmt: skip


def _read(config: Any, *names: str, default: int | None = None) -> int:
    for name in names:
        if getattr(config, name, None) is not None:
            return getattr(config, name)
    if default is None:
        raise ValueError(f"This config has no {names[0]}; build ModelShape(...) by hand for such a model.")
    return default


def _window(config: Any) -> tuple[int | None, int | None]:
    """(window, windowed layers) of a config; hybrid models name the kind of every layer in layer_types."""
    window, kinds = getattr(config, "sliding_window", None), getattr(config, "layer_types", None)
    return window, kinds.count("sliding_attention") if kinds and window else None


# Published configs: what lessons show without a hub.
SHAPES: dict[str, ModelShape] = {
    shape.name: shape
    for shape in (
        ModelShape("smollm2-135m", 30, 576, 9, 3, 64, 1536, 49152, 8192),
        ModelShape("pythia-1.4b", 24, 2048, 16, 16, 128, 8192, 50304, 2048, gated=False, tied=False),
        ModelShape("opt-1.3b", 24, 2048, 32, 32, 64, 8192, 50272, 2048, gated=False),
        ModelShape("gemma-2b", 18, 2048, 8, 1, 256, 16384, 256000, 8192),
        ModelShape("llama-2-7b", 32, 4096, 32, 32, 128, 11008, 32000, 4096, tied=False),
        ModelShape("mistral-7b-v0.1", 32, 4096, 32, 8, 128, 14336, 32000, 32768, tied=False, window=4096),
        ModelShape("llama-3-8b", 32, 4096, 32, 8, 128, 14336, 128256, 8192, tied=False),
        ModelShape("opt-13b", 40, 5120, 40, 40, 128, 20480, 50272, 2048, gated=False),
    )
}
