"""How many bytes a KV cache takes: every variant of the formula (lesson 02).

K and V, for every layer, KV head, head dimension and cached token: b·S·L·2·H_kv·d·e bytes, e (`cache_bytes`) an
element. ZeroDivisionError for a size of 0 where a formula divides by it.
GB = 1e9, GiB = 2**30: print the unit. Sources: GQA, Ainslie et al. 2023; MLA, DeepSeek-V2 2024;
KIVI, Liu et al. 2024; paging, Kwon et al. 2023.
"""

from lessons_lib.measure.config import ModelConfig

MiB, GiB = 2**20, 2**30


def course_formula(shape: ModelConfig, tokens: int = 1, batch: int = 1) -> int:
    """2·2·b·S·L·D bytes: K and V, 2 bytes each. True only for 16 bits, multi-head attention and H·d = D."""
    return 2 * 2 * batch * tokens * shape.num_layers * shape.hidden_size


def kv_bytes_per_token(shape: ModelConfig, cache_bytes: float = 2) -> float:
    """k = 2·L·H_kv·d·e: bytes that one more token takes, as long as no window is full."""
    return shape.kv_elements(1) * cache_bytes


def kv_bytes(shape: ModelConfig, tokens: int, batch: int = 1, cache_bytes: float = 2) -> float:
    """Bytes of a cache with `tokens` tokens of each of `batch` sequences; windowed layers: min(S, window).

    Beams and parallel samples multiply `batch` unless they share blocks. A static cache takes the bytes of its
    capacity from the first token on.
    """
    return batch * shape.kv_elements(tokens) * cache_bytes


def overstated(shape: ModelConfig) -> float:
    """How many times too large the course formula is for this model: D/(H_kv·d) at 16 bits."""
    return course_formula(shape) / kv_bytes_per_token(shape)


def blocks_for(tokens: int, block_size: int) -> int:
    """ceil(S / block_size): blocks that S tokens need, the last one perhaps partly empty."""
    return -(-tokens // block_size)


def paged_bytes(shape: ModelConfig, tokens: int, block_size: int, batch: int = 1) -> float:
    """Bytes of a paged cache in 16 bits: whole blocks for every sequence."""
    return kv_bytes(shape, blocks_for(tokens, block_size) * block_size, batch)


def mla_bytes_per_token(layers: int, latent: int, rotary: int, cache_bytes: float = 2) -> float:
    """Bytes a token of multi-head latent attention: a layer keeps one compressed vector and one rotary key, no heads.

    latent, rotary: elements of each; no 2, since keys and values are both made of the vector.
    """
    return layers * (latent + rotary) * cache_bytes


def concat_bytes(shape: ModelConfig, cached: int, cache_bytes: float = 2) -> float:
    """Extra bytes of a step that grows the cache by concatenation: 2·S·k, the old cache read and written."""
    return 2 * kv_bytes(shape, cached, 1, cache_bytes)


def cached_tokens(prompt: int, new: int) -> int:
    """Tokens in the cache after `new` tokens were emitted: P + n - 1, the newest has not been fed yet."""
    return prompt + max(new, 1) - 1


def quantized_bits(bits: int, group: int) -> float:
    """Bits per element with scale and zero point (16 bits each) for every group of G elements: n + 32/G."""
    return bits + 32 / group


def quantized_bytes(shape: ModelConfig, tokens: int, bits: int, group: int, residual: int = 0, batch: int = 1) -> float:
    """Bytes of a quantized cache, its newest `residual` tokens in 16 bits (KIVI: 2 bits, G = 32, R = 128)."""
    newest = min(tokens, residual)
    exact = kv_bytes(shape, newest, batch)
    return exact + (kv_bytes(shape, tokens, batch, 1) - exact / 2) * quantized_bits(bits, group) / 8


def tokens_that_fit(memory: float, weight_bytes: float, shape: ModelConfig, cache_bytes: float = 2) -> int:
    """Tokens whose cache fits into `memory` bytes beside the weights, activations and windows ignored; at least 0."""
    return max(0, int((memory - weight_bytes) // kv_bytes_per_token(shape, cache_bytes)))


def requests_that_fit(
    memory: float,
    weight_bytes: float,
    shape: ModelConfig,
    tokens: int,
    cache_bytes: float = 2,
    draft: ModelConfig | None = None,
) -> int:
    """Sequences of `tokens` tokens whose caches fit beside the weights; a draft's own cache counts for each.

    memory in bytes. weight_bytes: all weights that lie in memory, the draft's included.
    """
    each = kv_bytes(shape, tokens, 1, cache_bytes) + (kv_bytes(draft, tokens, 1, cache_bytes) if draft else 0)
    return max(0, int((memory - weight_bytes) // each))
