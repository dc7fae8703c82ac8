"""For pytest anywhere in the repository: where nbval executes lessons, each timing is taken once (measure/clock.py)."""

import os

import pytest


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("nbval", False) or config.getoption("nbval_lax", False):
        os.environ.setdefault("LESSONS_LIB_QUICK", "1")
        if "PYTEST_XDIST_WORKER" in os.environ:  # kernels that share the cores make each other several times slower
            os.environ.setdefault("OMP_NUM_THREADS", "1")
