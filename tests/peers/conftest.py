"""Libraries that quantize, where they are installed: as fixtures, which skip where they are not."""

import logging

import pytest

HOW = "install lessons_lib[quantization] to compare with it"


@pytest.fixture
def bitsandbytes():
    pytest.importorskip("bitsandbytes", reason=f"bitsandbytes is missing; {HOW}")
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    return pytest.importorskip("bitsandbytes.functional")


@pytest.fixture
def torchao():
    pytest.importorskip("torchao", reason=f"torchao is missing; {HOW}")
    return pytest.importorskip("torchao.quantization")


@pytest.fixture
def quanto():
    return pytest.importorskip("optimum.quanto", reason=f"optimum-quanto is missing; {HOW}")


@pytest.fixture
def hqq():
    return pytest.importorskip("hqq.core.quantize", reason=f"hqq is missing; {HOW}").Quantizer
