"""The drawings of imgs/, made by code, for CONTRIBUTING and the lessons.

machine   memory and arithmetic, prefill and decode, the one loop (lessons 00, 01, 06)
model     the parts of a decoder, attention, heads that share keys and values (01, 02)
caching   how the cache works, what it saves, two ways to store it (02, 03)
house     the path of a prompt through the code
predictions  predicted against measured values (README)
shapes    the shapes of every drawing
"""

from tools.drawings import caching, house, machine, model, predictions  # each registers its drawings
from tools.drawings.shapes import GALLERY

__all__ = ["GALLERY", "caching", "house", "machine", "model", "predictions"]
