"""Drawings made by code, for README and the lessons: each function returns a Figure with its alt text.

In a lesson: `figures.display(drawings.kv_caching())`. `ALT` has the alt texts by name, to go beside the
PNGs that `draw_all` writes.

machine     memory and arithmetic, prefill and decode, the one loop (lessons 00, 01, 06)
model       the parts of a decoder, attention, heads that share (01, 02)
caching     how the cache works, what it saves, two ways to store it (02, 03)
house       the way through the code
gallery     how a drawing is registered, and all are written
shapes      what every drawing is made of
"""

from lessons_lib.figures.drawings.caching import cache_savings, kv_caching, static_and_dynamic
from lessons_lib.figures.drawings.gallery import ALT, GALLERY, draw_all
from lessons_lib.figures.drawings.house import the_house
from lessons_lib.figures.drawings.machine import memory_and_arithmetic, one_loop, prefill_and_decode
from lessons_lib.figures.drawings.model import decoder_only_model, head_sharing, masked_self_attention

__all__ = [
    "ALT", "GALLERY", "cache_savings", "decoder_only_model", "draw_all", "head_sharing", "kv_caching",
    "masked_self_attention", "memory_and_arithmetic", "one_loop", "prefill_and_decode", "static_and_dynamic",
    "the_house",
]  # fmt: skip
