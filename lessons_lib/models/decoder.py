"""A readable Llama-family decoder (lessons 01-03) with the weights and the logits of transformers.

Pre-norm blocks of RMSNorm, rotary embeddings (Su et al. 2021, arXiv 2104.09864), grouped-query attention and SwiGLU
(Shazeer 2020, arXiv 2002.05202), as in Llama, Mistral and SmolLM.
Sequences are *packed*: the tokens of all sequences are concatenated, and every matmul runs over all of them at once.
Only attention runs per sequence, each with its own cache, positions and mask.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lessons_lib.attention.rotary import rotary_tables, rotate
from lessons_lib.caches.cache import causal_mask
from lessons_lib.measure.config import ModelConfig
from lessons_lib.models.checkpoint import fused_weights, head_is_embedding
from lessons_lib.quantization.linear import sharing_copy


def decoder_config(config) -> ModelConfig:
    """Convert a transformers Llama, Mistral or SmolLM config. Raises ValueError if this decoder does not support it.

    A model with a sliding window gets a context no longer than the window. Within the window, sliding and plain causal
    attention are the same.
    """
    rope, activation = getattr(config, "rope_parameters", None) or {}, getattr(config, "hidden_act", None)
    unsupported = {
        f"model type {config.model_type!r}": config.model_type not in ("llama", "mistral"),
        f"rope type {rope.get('rope_type')!r}": rope.get("rope_type", "default") not in ("default", "llama3"),
        f"activation {activation!r}": activation != "silu",
        "biases": getattr(config, "attention_bias", False) or getattr(config, "mlp_bias", False),
    }
    for what, present in unsupported.items():
        if present:
            raise ValueError(f'the readable decoder has no {what}; use target(kind="transformers") instead')
    found = ModelConfig.from_transformers(config)
    context = min(found.max_position_embeddings, found.sliding_window or sys.maxsize)
    return replace(found, max_position_embeddings=context, sliding_window=None, windowed_layers=None)


def computes(config) -> bool:
    """Whether this decoder supports a model with this transformers config."""
    try:
        decoder_config(config)
    except ValueError:
        return False
    return True


class KeysAndValues(Protocol):
    """The part of a cache that a layer uses: append new keys and values, return all cached ones."""

    def append(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Append keys and values (H_kv, T, d) of T new tokens -> all cached ones (H_kv, S + T, d).

        Raises ValueError if the cache is full.
        """


class NoCache:
    """Stands in for a cache when one forward pass processes the whole sequence."""

    def append(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys and values (H_kv, T, d) unchanged: there are no earlier ones."""
        return keys, values


@dataclass
class Segment:
    """One sequence's part of a packed forward pass.

    positions: (T,), of its tokens. mask: (T, S) bool, or None for causal; here S includes the T new tokens.
    unrotated: whether the cache takes keys before RoPE and rotates them itself.
    """

    positions: Tensor
    cache: KeysAndValues
    mask: Tensor | None = None
    unrotated: bool = False


@dataclass
class States:
    """Hidden states (T, D) after the last layer that ran, and after the layers requested by number."""

    last: Tensor
    after: dict[int, Tensor] = field(default_factory=dict)


def attend(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    """Grouped-query attention: q (H, T, d), keys and values (H_kv, S, d) -> (H, T, d).

    mask: (T, S) bool, True = may attend. None is causal: the last query attends to all S keys, the one before it to
    S - 1.

    g = H / H_kv query heads share one KV head (Ainslie et al. 2023, arXiv 2305.13245). The g queries of a group are
    folded into the query axis. What is left is plain attention with H_kv heads, and no key or value is copied.
    """
    heads, count, dim = q.shape
    groups, entries = heads // keys.shape[0], keys.shape[1]
    if mask is None and 1 < count == entries:  # a whole prompt: is_causal lets the kernel skip half the work
        args = dict(is_causal=True, enable_gqa=groups > 1)
        return F.scaled_dot_product_attention(q[None], keys[None], values[None], **args)[0]
    if mask is None and count > 1:
        mask = causal_mask(count, entries, q.device)
    # fold the g queries of each KV head into the query axis
    folded = q.reshape(keys.shape[0], groups * count, dim)
    mask = mask if mask is None or groups == 1 else mask.repeat(groups, 1)
    out = F.scaled_dot_product_attention(folded[None], keys[None], values[None], attn_mask=mask)
    return out[0].reshape(heads, count, dim)


class Layer(nn.Module):
    """One transformer block: x + attention(norm(x)), then x + mlp(norm(x)).

    One matmul computes q, k and v, another gate and up. The four matrices are nn.Linear, or modules of
    `quantization.linear` that replaced them. attend: the attention function (see `with_attention`).
    """

    def __init__(self, config: ModelConfig, index: int):
        super().__init__()
        self.config, self.index, self.attend = config, index, attend
        self.attention_norm = nn.Parameter(torch.empty(config.hidden_size))
        self.mlp_norm = nn.Parameter(torch.empty(config.hidden_size))
        heads = config.num_heads + 2 * config.num_kv_heads
        self.qkv = nn.Linear(config.hidden_size, heads * config.head_dim, bias=False)
        self.out = nn.Linear(config.num_heads * config.head_dim, config.hidden_size, bias=False)
        self.gate_up = nn.Linear(config.hidden_size, 2 * config.intermediate_size, bias=False)
        self.down = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, segments: Sequence[Segment]) -> Tensor:
        """x (T, D), cos and sin (T, 1, d) -> (T, D)."""
        x = x + self.attention(self._norm(x, self.attention_norm), cos, sin, segments)
        gate, up = self.gate_up(self._norm(x, self.mlp_norm)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)

    def attention(self, x: Tensor, cos: Tensor, sin: Tensor, segments: Sequence[Segment]) -> Tensor:
        """(T, D) -> (T, D): project the tokens of all sequences at once, then attend per sequence."""
        c = self.config
        # one matmul for q, k and v of all sequences; q and k are rotated together
        qkv = self.qkv(x).view(len(x), -1, c.head_dim)
        qk, v = qkv.split([c.num_heads + c.num_kv_heads, c.num_kv_heads], dim=1)
        q, k = rotate(qk, cos, sin).split([c.num_heads, c.num_kv_heads], dim=1)
        # each sequence attends to its own cache
        mixed, start = [], 0
        for segment in segments:
            rows = slice(start, start := start + len(segment.positions))
            new = qk[rows, c.num_heads :] if segment.unrotated else k[rows]
            keys, values = segment.cache.append(self.index, new.transpose(0, 1), v[rows].transpose(0, 1))
            mixed.append(self.attend(q[rows].transpose(0, 1), keys, values, segment.mask).transpose(0, 1))
        together = mixed[0] if len(mixed) == 1 else torch.cat(mixed)
        return self.out(together.reshape(len(x), -1))

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, weight.shape, weight, self.config.rms_norm_eps)


class Decoder(nn.Module):
    """Token ids to logits: `forward` returns hidden states, `logits` converts them to logits."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config, index) for index in range(config.num_layers))
        self.norm = nn.Parameter(torch.empty(config.hidden_size))
        self.head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        if config.tie_word_embeddings:
            self.head.weight = self.embedding.weight
        for name, table in zip(("cos", "sin"), rotary_tables(config), strict=True):
            self.register_buffer(name, table, persistent=False)

    @classmethod
    def from_transformers(cls, network) -> "Decoder":
        """The decoder with the weights, dtype and device of a transformers Llama or Mistral model.

        Weights are shared: where one fused matrix replaces several, theirs become views of the fused one. Raises
        ValueError as `decoder_config`.
        """
        config = replace(decoder_config(network.config), tie_word_embeddings=head_is_embedding(network))
        with torch.device("meta"):  # allocates nothing: the weights are assigned below
            decoder = cls(config)
        # the same memory in parameters of our own: freezing or casting either must not change half of the other
        weights = {name: weight.detach() for name, weight in fused_weights(network, decoder.config).items()}
        decoder.load_state_dict(weights, assign=True)
        if decoder.config.tie_word_embeddings:
            decoder.head.weight = decoder.embedding.weight
        decoder.cos, decoder.sin = (table.to(network.device, network.dtype) for table in (decoder.cos, decoder.sin))
        return decoder.eval().requires_grad_(False)

    def forward(
        self,
        tokens: Tensor,
        segments: Sequence[Segment],
        *,
        layers: range | None = None,
        states: Tensor | None = None,
        after: Sequence[int] = (),
    ) -> States:
        """Run the layers over tokens (T,) of all segments -> States with T rows.

        layers: run only these (default: all). states: (T, D) to start from instead of the embeddings.
        after: layers whose output is also returned (1 = after the first layer).
        """
        x = self.embedding(tokens) if states is None else states
        positions = segments[0].positions if len(segments) == 1 else torch.cat([s.positions for s in segments])
        cos, sin = self.cos[positions][:, None], self.sin[positions][:, None]
        found = {}
        for index in layers if layers is not None else range(len(self.layers)):
            x = self.layers[index](x, cos, sin, segments)
            if index + 1 in after:
                found[index + 1] = x
        return States(x, found)

    def final(self, states: Tensor) -> Tensor:
        """The final norm, whose output the head reads: (..., D) after the last layer -> (..., D)."""
        return F.rms_norm(states, self.norm.shape, self.norm, self.config.rms_norm_eps)

    def logits(self, states: Tensor) -> Tensor:
        """The final norm and the head: (T, D) after any layer -> logits (T, V)."""
        return self.score(self.final(states))

    def score(self, final: Tensor) -> Tensor:
        """The head: (T, D) after the final norm -> logits (T, V)."""
        return self.head(final)

    def read(self, ids: Sequence[int]) -> Tensor:
        """Logits (T, V) of a whole sequence of T ids, in one forward pass without a cache."""
        device = self.norm.device
        segment = Segment(torch.arange(len(ids), device=device), NoCache())
        return self.logits(self(torch.tensor(list(ids), device=device), [segment]).last)


def with_attention(decoder: Decoder, attend: Callable) -> Decoder:
    """A copy of the decoder with another attention function (arguments as `attend`); all weights are shared."""
    copy = sharing_copy(decoder)
    for layer in copy.layers:
        layer.attend = attend
    return copy
