"""KV caches (lessons 02, 03, 05): growing, static and paged, and their sizes in bytes."""

from lessons_lib.caches.cache import ContiguousCache, StaticBuffers, StaticCache, causal_mask
from lessons_lib.caches.paged import PagedCache
from lessons_lib.caches.sizes import (
    GiB,
    MiB,
    cached_tokens,
    concat_bytes,
    course_formula,
    kv_bytes,
    kv_bytes_per_token,
    overstated,
    requests_that_fit,
    tokens_that_fit,
)

__all__ = [
    "ContiguousCache",
    "GiB",
    "MiB",
    "PagedCache",
    "StaticBuffers",
    "StaticCache",
    "cached_tokens",
    "causal_mask",
    "concat_bytes",
    "course_formula",
    "kv_bytes",
    "kv_bytes_per_token",
    "overstated",
    "requests_that_fit",
    "tokens_that_fit",
]
