"""How many cases a test tries: its own number, many times that in `make test-deep`."""

import os

from hypothesis import settings

DEEP = os.environ.get("HYPOTHESIS_PROFILE") == "deep"
FACTOR = 200 if DEEP else 1


def examples(count: int, **others) -> settings:
    """Settings with so many cases."""
    return settings(max_examples=count * FACTOR, **others)
