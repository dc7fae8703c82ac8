"""KV caches (lessons 02, 03, 05, 16): growing, static, paged and streaming, and their sizes in bytes."""

from lessons_lib.caches.cache import ContiguousCache, StaticBuffers, StaticCache, causal_mask
from lessons_lib.caches.paged import PagedCache
from lessons_lib.caches.sizes import (
    cached_tokens,
    kv_bytes,
    kv_bytes_per_token,
    requests_that_fit,
)
from lessons_lib.caches.streaming import Streaming, StreamingCache

__all__ = [
    "ContiguousCache",
    "PagedCache",
    "StaticBuffers",
    "StaticCache",
    "Streaming",
    "StreamingCache",
    "cached_tokens",
    "causal_mask",
    "kv_bytes",
    "kv_bytes_per_token",
    "requests_that_fit",
]
