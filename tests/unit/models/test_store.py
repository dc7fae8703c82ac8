"""Folders that are made once, also by two processes, on full disks and after a kill."""

import errno
import multiprocessing
import os
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import SafetensorError
from support.examples import examples

from lessons_lib.models.store import ModelUnavailable, intact, stored

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="starts its processes by fork")


def fill(folder):
    (folder / "inner").mkdir()
    (folder / "inner" / "weights").write_bytes(bytes(range(256)) * 9)


def visible(folder):
    """What lies beside folder but for the lock, which stays and is empty."""
    return sorted(path.name for path in folder.parent.iterdir() if path.suffix != ".lock")


def test_a_folder_is_made_once_and_then_found(tmp_path):
    calls = []
    for _ in range(2):
        folder = stored(tmp_path / "deep" / "model", lambda fresh: (calls.append(1), fill(fresh)))
    assert (folder / "inner" / "weights").read_bytes() == bytes(range(256)) * 9
    assert calls == [1] and visible(folder) == ["model"]


@pytest.mark.parametrize("name", ["inner/weights", "manifest.json"])
def test_a_folder_without_one_of_its_files_is_made_again(tmp_path, name):
    folder = stored(tmp_path / "model", fill)
    (folder / name).unlink()
    assert not intact(folder)
    assert intact(stored(folder, fill)) and visible(folder) == ["model"]


@examples(60)
@given(st.integers(0, 9999), st.integers(0, 9), st.binary(max_size=9))
@pytest.mark.parametrize("name", ["inner/weights", "manifest.json"])
def test_whatever_happened_to_a_file_the_folder_holds_what_was_stored(tmp_path_factory, name, place, count, new):
    """Some of its bytes, `count` from `place` on, are replaced by others, more or fewer."""
    folder = stored(tmp_path_factory.mktemp("damaged") / "model", fill)
    content = (folder / name).read_bytes()
    place %= len(content) + 1
    (folder / name).write_bytes(content[:place] + new + content[place + count :])
    assert intact(stored(folder, fill)) and (folder / "inner" / "weights").read_bytes() == bytes(range(256)) * 9


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("a bug"), OSError(errno.EIO, "a broken disk")])
def test_an_interruption_leaves_nothing_and_passes_on(tmp_path, error):
    def interrupted(fresh):
        fill(fresh)
        raise error

    with pytest.raises(type(error)):
        stored(tmp_path / "model", interrupted)
    assert visible(tmp_path / "model") == []


@pytest.mark.parametrize(
    "error, sentence",
    [
        (OSError(errno.ENOSPC, "No space left on device"), "disk of .* is full; free about 1 GB there, or set LESSONS"),
        (SafetensorError("I/O error: No space left on device (os error 28)"), "disk of .* is full"),
        (PermissionError(errno.EACCES, "Permission denied"), "cannot be written .*; make it writable, or set LESSONS"),
        (OSError(errno.EROFS, "Read-only file system"), "cannot be written"),
    ],
)
def test_a_full_disk_and_a_forbidden_folder_give_one_sentence_and_leave_nothing(tmp_path, error, sentence):
    def failing(fresh):
        fill(fresh)
        raise error

    with pytest.raises(ModelUnavailable, match=sentence) as caught:
        stored(tmp_path / "model", failing)
    assert "\n" not in str(caught.value)
    assert visible(tmp_path / "model") == []


def test_an_intact_folder_is_used_even_if_nothing_can_be_written(tmp_path, monkeypatch):
    folder = stored(tmp_path / "model", fill)

    def refuse(*_, **__):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("pathlib.Path.mkdir", refuse)
    monkeypatch.setattr("tempfile.mkdtemp", refuse)
    assert stored(folder, refuse) == folder


@needs_fork
def test_two_processes_at_once_make_it_once(tmp_path):
    def slow(fresh):
        with (tmp_path / "calls").open("a") as calls:
            calls.write("x")
        fill(fresh)
        time.sleep(1.5)  # longer than the first wait for the lock

    context = multiprocessing.get_context("fork")
    both = [context.Process(target=stored, args=(tmp_path / "models" / "model", slow)) for _ in range(2)]
    for process in both:
        process.start()
    for process in both:
        process.join(60)
    assert [process.exitcode for process in both] == [0, 0]
    assert (tmp_path / "calls").read_text() == "x" and intact(tmp_path / "models" / "model")


@needs_fork
def test_what_a_killed_process_left_is_swept_away(tmp_path):
    def killed(fresh):
        fill(fresh)
        os._exit(9)

    process = multiprocessing.get_context("fork").Process(target=stored, args=(tmp_path / "model", killed))
    process.start()
    process.join(60)
    assert process.exitcode == 9 and len(visible(tmp_path / "model")) == 1  # the half-made folder
    assert intact(stored(tmp_path / "model", fill)) and visible(tmp_path / "model") == ["model"]
