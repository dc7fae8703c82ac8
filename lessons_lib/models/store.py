"""Folders made once (every lesson): whole or not at all, whatever interrupts or whoever else is at it."""

import errno
import json
import os
import re
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout
from safetensors import SafetensorError

from lessons_lib import progress

MANIFEST = "manifest.json"
FULL = (errno.ENOSPC, errno.EDQUOT)
REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST)


class ModelUnavailable(RuntimeError):
    """A model cannot be had here and now; the message says why and what to do, in one sentence."""


def stored(folder: Path, fill: Callable[[Path], None]) -> Path:
    """folder, made by fill(empty folder) unless it is there already and undamaged.

    Made beside its place and renamed once complete, under a lock: a second process waits and then finds it.
    ModelUnavailable where the disk is full or the folder cannot be written.
    """
    if intact(folder):
        return folder
    with explained(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _locked(folder):
            if not intact(folder):  # perhaps made while we waited
                _make(folder, fill)
    return folder


def intact(folder: Path) -> bool:
    """True if every file has the length and checksum it was stored with: 540 MB take 0.1 s."""
    try:
        listed = json.loads((folder / MANIFEST).read_text())
        return all(_checksum(folder / name) == expected for name, expected in listed.items())
    except (OSError, ValueError):
        return False


@contextmanager
def explained(folder: Path) -> Iterator[None]:
    """Turns the errors of a full disk and of a forbidden folder into a ModelUnavailable that says what to do."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        number = _number(error)
        if number in FULL:
            why = f"The disk of {folder.parent} is full; free about 1 GB there"
        elif number in REFUSED:
            why = f"The folder {folder.parent} cannot be written ({os.strerror(number)}); make it writable"
        else:
            raise
        raise ModelUnavailable(f"{why}, or set LESSONS_LIB_CACHE to another folder.") from error


def _number(error: Exception) -> int | None:
    """The error number; safetensors writes with Rust, which keeps it in the text alone."""
    if isinstance(error, OSError):
        return error.errno
    found = re.search(r"os error (\d+)", str(error))
    return int(found[1]) if found else None


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    lock = FileLock(folder.with_name(folder.name + ".lock"))
    try:
        lock.acquire(timeout=1)
    except Timeout:
        progress.say(f"Another process is making {folder.name}; waiting for it.")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _make(folder: Path, fill: Callable[[Path], None]) -> None:
    part = f".{folder.name}.part-"
    for left in folder.parent.glob(part + "*"):  # of a process that was killed: we hold the lock
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=part, dir=folder.parent) as scratch:
        fresh = Path(scratch) / folder.name
        fresh.mkdir()
        fill(fresh)
        _write_manifest(fresh)
        if folder.exists():  # damaged, or half of it deleted
            os.replace(folder, Path(scratch) / "old")
        os.replace(fresh, folder)


def _write_manifest(folder: Path) -> None:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    listed = {path.relative_to(folder).as_posix(): _checksum(path) for path in files}
    (folder / MANIFEST).write_text(json.dumps(listed, indent=1))


def _checksum(path: Path) -> list[int]:
    """[bytes, CRC-32]: against accidents, not against forgery (the download's SHA-256 does that)."""
    crc = 0
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            crc = zlib.crc32(block, crc)
        return [file.tell(), crc]
