"""Benches (all lessons): every claim of the course, measured. `python -m bench.run` measures them."""
