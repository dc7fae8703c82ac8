"""KV caches (lessons 02, 03, 05, 16): growing, static, paged and streaming, and their sizes in bytes."""

from lessons_lib.caches.cache import ContiguousCache, StaticCache
from lessons_lib.caches.paged import PagedCache
from lessons_lib.caches.sizes import kv_bytes
from lessons_lib.caches.streaming import Streaming, StreamingCache

__all__ = [
    "ContiguousCache",
    "PagedCache",
    "StaticCache",
    "Streaming",
    "StreamingCache",
    "kv_bytes",
]
