"""llama.cpp is optional: without it, and for models that it has no file of, one sentence says what to do. Its other
formats are made of the packaged file once."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from lessons_lib.decoding import llamacpp
from lessons_lib.models import ModelUnavailable

PACKAGED = b"packaged"


@pytest.fixture
def without(monkeypatch):
    monkeypatch.setitem(sys.modules, "llama_cpp", None)  # as if it could not be imported


class Quantizer:
    """llama_cpp's quantizer as far as we call it: it writes the name of the format, and may fail halfway."""

    __version__, GGML_TYPE_Q8_0, LLAMA_FTYPE_MOSTLY_Q4_0, LLAMA_FTYPE_MOSTLY_Q4_K_M = "1.2.3", 8, 2, 15

    def __init__(self):
        self.calls, self.status = [], 0

    def llama_model_quantize_default_params(self):
        return SimpleNamespace()

    def llama_model_quantize(self, source, file, options) -> int:
        assert Path(source.decode()).read_bytes() == PACKAGED
        Path(file.decode()).write_text(f"format {options.ftype}")
        self.calls.append(options)
        return self.status


@pytest.fixture
def quantizer(monkeypatch, tmp_path) -> Quantizer:
    """A quantizer that counts its calls, and a packaged file beside an empty cache."""
    packaged, found = tmp_path / "packaged.gguf", Quantizer()
    packaged.write_bytes(PACKAGED)
    monkeypatch.setattr(llamacpp, "gguf_file", lambda source: packaged)
    monkeypatch.setattr(llamacpp, "cache_dir", lambda: tmp_path / "cache")
    monkeypatch.setitem(sys.modules, "llama_cpp", found)
    return found


def test_without_the_extra_a_sentence_says_how_to_install_it(without):
    with pytest.raises(ModelUnavailable, match=r"llama.cpp cannot be run here .*: `pip install -e .\[llamacpp\]`"):
        llamacpp.LlamaCpp("smollm2-135m")
    assert llamacpp.missing().endswith("five minutes on two cores.")


def test_the_packaged_file_is_read_as_it_is(quantizer):
    assert llamacpp.weights_file("smollm2-135m", "Q4_1").read_bytes() == PACKAGED and not quantizer.calls


def test_another_format_is_made_once_and_keeps_the_embedding_in_8_bits(quantizer):
    made = [llamacpp.weights_file("smollm2-135m", weights) for weights in ("Q4_0", "Q4_0", "Q4_K_M")]
    assert [file.read_text() for file in made] == ["format 2", "format 2", "format 15"] and made[0] == made[1]
    assert [(call.ftype, call.allow_requantize) for call in quantizer.calls] == [(2, True), (15, True)]
    assert all(call.output_tensor_type == call.token_embedding_type == 8 for call in quantizer.calls)


def test_another_packaged_file_and_another_llama_cpp_make_their_own(quantizer, monkeypatch):
    one = llamacpp.weights_file("smollm2-135m", "Q4_0")
    monkeypatch.setattr(Quantizer, "__version__", "1.2.4")
    two = llamacpp.weights_file("smollm2-135m", "Q4_0")
    monkeypatch.setitem(llamacpp.PACKAGED, "smollm2-135m", SimpleNamespace(sha256="f" * 64))
    assert len({one, two, llamacpp.weights_file("smollm2-135m", "Q4_0")}) == 3 == len(quantizer.calls)


def test_a_file_that_could_not_be_made_is_refused_in_a_sentence(quantizer):
    quantizer.status = 1
    with pytest.raises(ModelUnavailable, match="could not requantize packaged.gguf to Q4_0; use Q4_1"):
        llamacpp.weights_file("smollm2-135m", "Q4_0")


def test_other_formats_and_models_are_refused(quantizer):
    with pytest.raises(ValueError, match="not run here with weights in 'Q2_K'; use one of: Q4_1, Q4_0, Q4_K_M"):
        llamacpp.weights_file("smollm2-135m", "Q2_K")
    with pytest.raises(ModelUnavailable, match="not 'tiny'; use one of: smollm2-135m"):
        llamacpp.weights_file("tiny", "Q4_0")


def test_a_files_parts_are_its_tensors_bytes_by_format(tiny_gguf):
    from gguf import GGUFReader

    tensors = GGUFReader(tiny_gguf).tensors
    parts = llamacpp.parts_of(tiny_gguf)
    assert list(parts.values()) == sorted(parts.values(), reverse=True) and {*parts} == {"Q4_1", "Q8_0", "F32"}
    assert parts["Q8_0"] == sum(int(of.n_bytes) for of in tensors if of.name == "token_embd.weight")
    assert sum(parts.values()) == sum(int(of.n_bytes) for of in tensors)
