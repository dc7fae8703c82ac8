"""llama.cpp is optional: without it, and for models that it has no file of, one sentence says what to do."""

import sys

import pytest

from lessons_lib.decoding import llamacpp
from lessons_lib.models import ModelUnavailable


@pytest.fixture
def without(monkeypatch):
    monkeypatch.setitem(sys.modules, "llama_cpp", None)  # as if it could not be imported


def test_without_the_extra_a_sentence_says_how_to_install_it(without):
    with pytest.raises(ModelUnavailable, match=r"llama.cpp cannot be run here .*: `pip install -e .\[llamacpp\]`"):
        llamacpp.LlamaCpp("smollm2-135m")
    assert llamacpp.missing().endswith("five minutes on two cores.")


def test_the_extra_is_one_of_the_projects():
    import tomllib

    from lessons_lib.paths import ROOT

    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert [text.partition(">")[0] for text in extras["llamacpp"]] == ["llama-cpp-python"]
