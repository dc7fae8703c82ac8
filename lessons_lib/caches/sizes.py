"""KV cache size in bytes (lesson 02): the formula and its variants.

A cache holds K and V for every layer, KV head, head dimension and cached token: b·S·L·2·H_kv·d·e bytes, where e
(`cache_bytes`) is the bytes per element. GB = 1e9 and GiB = 2**30 bytes: always print the unit.
Sources: GQA, Ainslie et al. 2023; MLA, DeepSeek-V2 2024; KIVI, Liu et al. 2024; paging, Kwon et al. 2023.
"""

from lessons_lib.measure.config import ModelConfig

MiB, GiB = 2**20, 2**30


def course_formula(shape: ModelConfig, tokens: int = 1, batch: int = 1) -> int:
    """2·2·b·S·L·D bytes: K and V, 2 bytes each. Correct only for 16 bits, multi-head attention and H·d = D."""
    return 2 * 2 * batch * tokens * shape.num_layers * shape.hidden_size


def kv_bytes_per_token(shape: ModelConfig, cache_bytes: float = 2) -> float:
    """k = 2·L·H_kv·d·e: bytes per cached token, as long as no attention window is full."""
    return shape.kv_elements(1) * cache_bytes


def kv_bytes(shape: ModelConfig, tokens: int, batch: int = 1, cache_bytes: float = 2) -> float:
    """Bytes of the cache of `batch` sequences of `tokens` tokens each. Windowed layers hold min(S, window) tokens.

    Beams and parallel samples multiply `batch` unless they share blocks. For a static cache, pass its capacity as
    `tokens`: it is allocated in full from the start.
    """
    return batch * shape.kv_elements(tokens) * cache_bytes


def overstated(shape: ModelConfig) -> float:
    """Factor by which `course_formula` overstates this model's cache: D/(H_kv·d) at 16 bits."""
    return course_formula(shape) / kv_bytes_per_token(shape)


def blocks_for(tokens: int, block_size: int) -> int:
    """Blocks that S tokens need: ceil(S / block_size). The last one may be partly empty."""
    return -(-tokens // block_size)


def concat_bytes(shape: ModelConfig, cached: int, cache_bytes: float = 2) -> float:
    """Extra memory traffic in bytes of a step that grows the cache with torch.cat: 2·S·k, one read and one write."""
    return 2 * kv_bytes(shape, cached, 1, cache_bytes)


def cached_tokens(prompt: int, new: int) -> int:
    """Tokens in the cache after `new` tokens were generated: P + n - 1, because the newest has not been fed yet."""
    return prompt + max(new, 1) - 1


def tokens_that_fit(memory: float, weight_bytes: float, shape: ModelConfig, cache_bytes: float = 2) -> int:
    """Tokens whose cache fits into `memory` bytes beside the weights, at least 0. Ignores activations and windows."""
    return max(0, int((memory - weight_bytes) // kv_bytes_per_token(shape, cache_bytes)))


def requests_that_fit(
    memory: float,
    weight_bytes: float,
    shape: ModelConfig,
    tokens: int,
    cache_bytes: float = 2,
    draft: ModelConfig | None = None,
) -> int:
    """Sequences of `tokens` tokens whose caches fit into `memory` bytes beside the weights.

    weight_bytes: all weights in memory, those of a draft model included. draft: its own cache counts per sequence.
    """
    each = kv_bytes(shape, tokens, 1, cache_bytes) + (kv_bytes(draft, tokens, 1, cache_bytes) if draft else 0)
    return max(0, int((memory - weight_bytes) // each))
