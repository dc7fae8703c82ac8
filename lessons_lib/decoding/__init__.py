"""Decoding: one loop for every technique. `generate` repeats `step`; see row.py."""
