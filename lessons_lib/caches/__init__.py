"""KV caches (lessons 02, 03, 05): growing, static and paged, and their sizes in bytes."""

from lessons_lib.caches.cache import ContiguousCache, StaticBuffers, StaticCache, causal_mask
from lessons_lib.caches.paged import PagedCache
from lessons_lib.caches.sizes import (
    cached_tokens,
    kv_bytes,
    kv_bytes_per_token,
    requests_that_fit,
)

__all__ = [
    "ContiguousCache",
    "PagedCache",
    "StaticBuffers",
    "StaticCache",
    "cached_tokens",
    "causal_mask",
    "kv_bytes",
    "kv_bytes_per_token",
    "requests_that_fit",
]
