"""KV cache size in bytes (lesson 02), and how many blocks and requests that makes.

A cache holds K and V for every layer, KV head, head dimension and cached token: b·S·L·2·H_kv·d·e bytes, where e
(`cache_bytes`) is the bytes per element. With 16 bits, H_kv = H and H·d = D this is the textbook's 2·2·b·S·L·D.
"""

from lessons_lib.measure.config import ModelConfig


def kv_bytes(shape: ModelConfig, tokens: int, batch: int = 1, cache_bytes: float = 2) -> float:
    """Bytes of the cache of `batch` sequences of `tokens` tokens each. Windowed layers hold min(S, window) tokens.

    Beams and parallel samples multiply `batch` unless they share blocks. For a static cache, pass its capacity as
    `tokens`: it is allocated in full from the start.
    """
    return batch * shape.kv_elements(tokens) * cache_bytes


def blocks_for(tokens: int, block_size: int) -> int:
    """Blocks that S tokens need: ceil(S / block_size). The last one may be partly empty."""
    return -(-tokens // block_size)


def cached_tokens(prompt: int, new: int) -> int:
    """Tokens in the cache after `new` tokens were generated: P + n - 1, because the newest has not been fed yet."""
    return prompt + new - 1


def requests_that_fit(
    memory: float, weight_bytes: float, shape: ModelConfig, tokens: int, cache_bytes: float = 2
) -> int:
    """Sequences of `tokens` tokens whose caches fit into `memory` bytes beside the weights."""
    return max(0, int((memory - weight_bytes) // kv_bytes(shape, tokens, 1, cache_bytes)))
