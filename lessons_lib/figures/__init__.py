"""Drawings of how things work, made by code: `from lessons_lib.figures import drawings`."""
