"""Folders made once and atomically (every lesson): complete or absent, despite interruptions and other processes."""

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
    """The model is not available; the message gives the reason and the remedy in one sentence."""


def stored(folder: Path, fill: Callable[[Path], None]) -> Path:
    """The folder, made by fill(empty folder) unless it exists and is intact.

    It is made under another name and renamed once complete, under a lock: a second process waits and then finds it.
    Raises ModelUnavailable if the disk is full or the folder cannot be written.
    """
    if intact(folder):
        return folder
    with explained(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _locked(folder):
            if not intact(folder):  # another process may have made it while we waited
                _make(folder, fill)
    return folder


def intact(folder: Path) -> bool:
    """Whether every file has the stored length and checksum."""
    try:
        listed = json.loads((folder / MANIFEST).read_text())
        return all(_checksum(folder / name) == expected for name, expected in listed.items())
    except (OSError, ValueError):
        return False


@contextmanager
def explained(folder: Path) -> Iterator[None]:
    """Context manager that turns errors of a full disk or a read-only folder into a ModelUnavailable with a remedy."""
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
    """The error number; safetensors writes with Rust, which reports it only in the text."""
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
    # 1. remove the leftovers of killed processes: under the lock, no other process is making this folder
    for left in folder.parent.glob(part + "*"):
        shutil.rmtree(left, ignore_errors=True)
    # 2. fill a temporary folder beside the final one, then rename it
    with tempfile.TemporaryDirectory(prefix=part, dir=folder.parent) as scratch:
        fresh = Path(scratch) / folder.name
        fresh.mkdir()
        fill(fresh)
        _write_manifest(fresh)
        if folder.exists():  # damaged or incomplete
            os.replace(folder, Path(scratch) / "old")
        os.replace(fresh, folder)


def _write_manifest(folder: Path) -> None:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    listed = {path.relative_to(folder).as_posix(): _checksum(path) for path in files}
    (folder / MANIFEST).write_text(json.dumps(listed, indent=1))


def _checksum(path: Path) -> list[int]:
    """[bytes, CRC-32], against accidental damage only (the SHA-256 of the download is against forgery)."""
    crc = 0
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            crc = zlib.crc32(block, crc)
        return [file.tell(), crc]
