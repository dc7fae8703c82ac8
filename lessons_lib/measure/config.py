"""Configurations (every lesson): the sizes of a decoder-only model and what follows from them, and GPUs of data sheets.

Fields have transformers' names, shortened. Letters in the formulas: L num_layers, D hidden_size, H num_heads,
H_kv num_kv_heads, d head_dim, D_ff intermediate_size, V vocab_size.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

# int4: 4 bits per weight, plus a 16-bit scale and a 16-bit zero point for each group of 32 weights
ELEMENT_BYTES = {"fp64": 8, "fp32": 4, "bf16": 2, "fp16": 2, "int8": 1, "int4": 0.625}
UNGATED = {"bloom", "falcon", "gpt2", "gpt_bigcode", "gpt_neo", "gpt_neox", "gptj", "opt", "phi", "starcoder2"}
LLAMA3 = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")


@dataclass(frozen=True)
class ModelConfig:
    """Sizes of one model, and the constants of its norms and rotary embeddings.

    sliding_window: tokens that a layer with sliding-window attention keeps; windowed_layers: how many layers use it
    (None: all). head_rows: vocabulary rows of the LM head (None: all V); fewer in a draft model with a trimmed head.
    rope_scaling: Llama 3.1's (factor, low and high frequency factor, original context), else None.
    """

    name: str
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    max_position_embeddings: int
    gated: bool = True  # three MLP matrices (SwiGLU and similar) instead of two
    tie_word_embeddings: bool = True  # the LM head is the embedding table
    sliding_window: int | None = None
    windowed_layers: int | None = None
    head_rows: int | None = None
    rms_norm_eps: float = 1e-5
    rope_theta: float = 10_000.0
    rope_scaling: tuple[float, float, float, int] | None = None

    @cached_property
    def layer_weights(self) -> int:
        """N_lay: weights of all layers' matrices. Each is multiplied once per token."""
        return self.num_layers * sum(rows * columns for rows, columns in self.layer_matrices)

    @property
    def layer_matrices(self) -> list[tuple[int, int]]:
        """Shapes (rows, columns) of one layer's matrices as in torch's Linear: q, k, v, o, then the MLP's."""
        d, heads, kv = self.hidden_size, self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        up = [(self.intermediate_size, d)] * (2 if self.gated else 1)
        return [(heads, d), (kv, d), (kv, d), (d, heads), *up, (d, self.intermediate_size)]

    @property
    def head_weights(self) -> int:
        """N_head = V·D: weights of the LM head, tied or not; head_rows·D with a trimmed head."""
        return (self.head_rows or self.vocab_size) * self.hidden_size

    @property
    def weights(self) -> int:
        """N = N_lay + N_head: weights that one decode step multiplies. Embedding rows are only looked up."""
        return self.layer_weights + self.head_weights

    def kept(self, tokens: int) -> int:
        """Cached positions after S `tokens`, summed over layers: L·S, with min(S, window) in windowed layers."""
        windowed = self._windowed()
        return (self.num_layers - windowed) * tokens + windowed * min(tokens, self.sliding_window or tokens)

    def attended(self, tokens: int) -> int:
        """(query, key) pairs of a causal forward pass over T `tokens`, all layers: L·T(T+1)/2 without windows."""
        w, windowed = min(self.sliding_window or tokens, tokens), self._windowed()
        full, local = tokens * (tokens + 1) // 2, w * (w + 1) // 2 + (tokens - w) * w
        return (self.num_layers - windowed) * full + windowed * local

    def kv_elements(self, tokens: int) -> int:
        """Elements in the KV cache of one sequence of `tokens` tokens: K and V, H_kv heads of d, every layer."""
        return 2 * self.num_kv_heads * self.head_dim * self.kept(tokens)

    def _windowed(self) -> int:
        if self.sliding_window is None:
            return 0
        return self.num_layers if self.windowed_layers is None else self.windowed_layers

    @classmethod
    def from_transformers(cls, config: Any, name: str = "") -> ModelConfig:
        """Build from a transformers config or any object with its names. Raises ValueError if a size is missing.

        head_dim is taken from the config when present: H·d may differ from D (Gemma, Qwen3).
        """
        config = config.get_text_config() if hasattr(config, "get_text_config") else config
        heads, hidden = _read(config, "num_attention_heads", "n_head"), _read(config, "hidden_size", "n_embd")
        window, kinds = getattr(config, "sliding_window", None), getattr(config, "layer_types", None)
        rope = getattr(config, "rope_parameters", None) or {}
        # Falcon-40B has both flags, and ignores the first
        one_head = getattr(config, "multi_query", False) and not getattr(config, "new_decoder_architecture", False)
        return cls(
            name=name or getattr(config, "name_or_path", "") or getattr(config, "model_type", "model"),
            num_layers=_read(config, "num_hidden_layers", "n_layer"),
            hidden_size=hidden,
            num_heads=heads,
            num_kv_heads=1 if one_head else _read(config, "num_key_value_heads", "num_kv_heads", default=heads),
            head_dim=getattr(config, "head_dim", None) or hidden // heads,
            intermediate_size=_read(config, "intermediate_size", "ffn_dim", "n_inner", default=4 * hidden),
            vocab_size=_read(config, "vocab_size"),
            max_position_embeddings=_read(config, "max_position_embeddings", "n_positions", default=0),
            gated=getattr(config, "model_type", "llama") not in UNGATED,
            tie_word_embeddings=bool(getattr(config, "tie_word_embeddings", False)),
            sliding_window=window,
            # models that mix both list the type of every layer
            windowed_layers=kinds.count("sliding_attention") if kinds and window else None,
            rms_norm_eps=getattr(config, "rms_norm_eps", 1e-5),
            rope_theta=rope.get("rope_theta", 10_000.0),
            rope_scaling=tuple(rope[key] for key in LLAMA3) if rope.get("rope_type") == "llama3" else None,
        )


def _read(config: Any, *names: str, default: int | None = None) -> int:
    for name in names:
        if getattr(config, name, None) is not None:
            return getattr(config, name)
    if default is None:
        raise ValueError(f"This config has no {names[0]}; build ModelConfig(...) by hand for such a model.")
    return default


# Published configs, so that lessons need no hub.
CONFIGS: dict[str, ModelConfig] = {
    config.name: config
    for config in (
        ModelConfig("smollm2-135m", 30, 576, 9, 3, 64, 1536, 49152, 8192),
        ModelConfig("pythia-1.4b", 24, 2048, 16, 16, 128, 8192, 50304, 2048, gated=False, tie_word_embeddings=False),
        ModelConfig("opt-1.3b", 24, 2048, 32, 32, 64, 8192, 50272, 2048, gated=False),
        ModelConfig("gemma-2b", 18, 2048, 8, 1, 256, 16384, 256000, 8192),
        ModelConfig("llama-2-7b", 32, 4096, 32, 32, 128, 11008, 32000, 4096, tie_word_embeddings=False),
        ModelConfig(
            "mistral-7b-v0.1", 32, 4096, 32, 8, 128, 14336, 32000, 32768, tie_word_embeddings=False, sliding_window=4096
        ),
        ModelConfig("llama-3-8b", 32, 4096, 32, 8, 128, 14336, 128256, 8192, tie_word_embeddings=False),
        ModelConfig("opt-13b", 40, 5120, 40, 40, 128, 20480, 50272, 2048, gated=False),
    )
}


# --- Vendors' data sheets, for lessons to compare with


@dataclass(frozen=True)
class DataSheet:
    """Peak rates of one GPU, from NVIDIA's data sheet: bytes/s, dense (not sparse) bf16 FLOP/s, bytes of memory."""

    name: str
    bandwidth: float
    bf16_flops: float
    memory: float

    @property
    def ridge(self) -> float:
        """Arithmetic intensity (FLOPs per byte) above which bf16 work is compute-bound."""
        return self.bf16_flops / self.bandwidth


DATA_SHEETS: dict[str, DataSheet] = {
    "A100-40GB": DataSheet("A100-40GB", 1.555e12, 312e12, 40e9),
    "A100-80GB": DataSheet("A100-80GB", 2.04e12, 312e12, 80e9),
    "H100-SXM": DataSheet("H100-SXM", 3.35e12, 989e12, 80e9),
    "H200": DataSheet("H200", 4.8e12, 989e12, 141e9),
}
