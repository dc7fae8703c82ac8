"""A server on loopback with a tiny model, and a client of it."""

import pytest
from support.server import client_of, serving


@pytest.fixture(scope="module")
def worker():
    with serving() as worker:
        yield worker


@pytest.fixture
def client(worker):
    with client_of(worker) as client:
        yield client
