"""What many tests need: a tiny model, a tiny GGUF file, and the real model."""

import os
import socket
from pathlib import Path

import hypothesis
import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFWriter, quantize
from support.examples import DEEP, FACTOR
from tokenizers import pre_tokenizers

from lessons_lib.models import LanguageModel, ModelUnavailable, load, tiny
from lessons_lib.quantization.cpu import native

Q4_1, Q8_0, F32 = GGMLQuantizationType.Q4_1, GGMLQuantizationType.Q8_0, GGMLQuantizationType.F32
SIZES = {"layers": 2, "width": 64, "heads": 4, "kv_heads": 2, "mlp": 96}


hypothesis.settings.register_profile("steady", derandomize=True, deadline=None)  # the same examples on every machine
hypothesis.settings.register_profile("deep", max_examples=100 * FACTOR, deadline=None, print_blob=True)
hypothesis.settings.load_profile("deep" if DEEP else "steady")
matplotlib.use("Agg")


def pytest_configure(config: pytest.Config) -> None:
    if "PYTEST_XDIST_WORKER" in os.environ:
        torch.set_num_threads(1)  # processes that share the cores make each other several times slower
    config.addinivalue_line("markers", "model: needs the real model (fetched once); leave out with -m 'not model'")
    config.addinivalue_line("markers", "hub: fetches gigabytes from the Hugging Face hub; runs only with -m hub")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "smollm2" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.model)


@pytest.fixture
def tiny_model() -> torch.nn.Module:
    """Two random Llama layers in float64."""
    return tiny()


@pytest.fixture
def write_lesson(tmp_path):
    """write_lesson(name, *sources) -> Lesson, in a folder of its own."""
    import nbformat
    from support.notebooks import notebook

    from lessons_lib.course.lessons import Lesson

    def write(name: str, *sources: str, **options) -> Lesson:
        path = tmp_path / "notebooks" / f"{name}.ipynb"
        path.parent.mkdir(exist_ok=True)
        nbformat.write(notebook(*sources, **options), path)
        return Lesson(path)

    return write


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    plt.close("all")


@pytest.fixture(scope="session")
def smollm2() -> LanguageModel:
    """The real model in float32 on the CPU; from the user's cache, fetched there if need be. Do not change it."""
    try:
        return load("smollm2-135m", device="cpu", dtype="fp32")
    except ModelUnavailable as error:
        pytest.fail(f"{error} (Tests without the real model: pytest -m 'not model'.)", pytrace=False)


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any attempt to connect fails the test, even where the caller swallows errors."""
    attempts = []

    def refuse(*address, **options):
        attempts.append(address)
        raise OSError("no network in this test")

    for name in ("connect", "connect_ex"):
        monkeypatch.setattr(socket.socket, name, refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    yield
    assert not attempts


@pytest.fixture(scope="module")
def cold_compiler(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The compiler's cache in a folder of this run, which all its processes share: what it asks of a processor, and
    its headers, take ten seconds to compile."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "compiled"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(folder))
        yield


@pytest.fixture(scope="module")
def kernels(cold_compiler) -> None:
    """Our kernels in C++; without them the test is skipped."""
    if problem := native.problem():
        pytest.skip(problem)


@pytest.fixture(scope="session")
def tiny_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama of two layers in a GGUF file, quantized like the packaged model, with a byte-level tokenizer."""
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    writer = GGUFWriter(path, "llama")
    _add_metadata(writer)
    rng = np.random.default_rng(0)
    for name, shape in _tensor_shapes().items():
        kind = F32 if len(shape) == 1 else Q8_0 if name == "token_embd" else Q4_1
        values = rng.standard_normal(shape).astype(np.float32) / shape[-1] ** 0.5
        writer.add_tensor(f"{name}.weight", quantize(values + (len(shape) == 1), kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _tensor_shapes() -> dict[str, tuple[int, ...]]:
    width, mlp, kv = SIZES["width"], SIZES["mlp"], SIZES["width"] * SIZES["kv_heads"] // SIZES["heads"]
    layer = {
        "attn_norm": (width,), "attn_q": (width, width), "attn_k": (kv, width), "attn_v": (kv, width),
        "attn_output": (width, width), "ffn_norm": (width,), "ffn_gate": (mlp, width), "ffn_up": (mlp, width),
        "ffn_down": (width, mlp),
    }  # fmt: skip
    layers = {f"blk.{i}.{name}": shape for i in range(SIZES["layers"]) for name, shape in layer.items()}
    return {"token_embd": (len(_tokens()), width), "output_norm": (width,)} | layers


def _tokens() -> list[str]:
    return ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *sorted(pre_tokenizers.ByteLevel.alphabet()), "ĠĠ", "th"]


def _add_metadata(writer: GGUFWriter) -> None:
    writer.add_context_length(128)
    writer.add_embedding_length(SIZES["width"])
    writer.add_block_count(SIZES["layers"])
    writer.add_feed_forward_length(SIZES["mlp"])
    writer.add_head_count(SIZES["heads"])
    writer.add_head_count_kv(SIZES["kv_heads"])
    writer.add_rope_dimension_count(SIZES["width"] // SIZES["heads"])
    writer.add_rope_freq_base(5000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(_tokens())
    writer.add_token_types([3] * 3 + [1] * (len(_tokens()) - 3))
    writer.add_token_merges(["Ġ Ġ", "t h"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template("{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}")
