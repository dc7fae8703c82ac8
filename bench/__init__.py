"""Benches (all lessons): they measure every claim of the course. Run them with `python -m bench.run`."""
