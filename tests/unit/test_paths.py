"""Where the cache folder lies."""

import importlib
import os
from pathlib import Path

import pytest

from lessons_lib import paths


@pytest.fixture(autouse=True)
def variable_unset_and_put_back(monkeypatch):
    monkeypatch.setenv("LESSONS_LIB_CACHE", "set, so that it is put back after the test")
    monkeypatch.delenv("LESSONS_LIB_CACHE")


@pytest.mark.parametrize("name, folder", [("mine", Path("mine").absolute()), ("~/models", Path.home() / "models")])
def test_the_variable_names_the_cache_folder(monkeypatch, name, folder):
    monkeypatch.setenv("LESSONS_LIB_CACHE", name)
    assert paths.cache_dir() == folder


def test_a_relative_folder_is_the_same_one_for_processes_that_run_in_other_folders(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LESSONS_LIB_CACHE", "mine")
    importlib.reload(paths)  # as where a command starts
    assert os.environ["LESSONS_LIB_CACHE"] == str(tmp_path / "mine")


def test_without_the_variable_it_is_the_users_cache_folder(monkeypatch, tmp_path):
    monkeypatch.setattr(paths, "user_cache_path", lambda *_, **__: tmp_path / "user")
    assert paths.cache_dir() == tmp_path / "user"


def test_a_file_is_written_whole_or_not_at_all(monkeypatch, tmp_path):
    paths.write_whole(tmp_path / "new" / "file", "first")
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(PermissionError("it is open")))
    with pytest.raises(PermissionError):
        paths.write_whole(tmp_path / "new" / "file", "second")
    assert [(path.name, path.read_text()) for path in (tmp_path / "new").iterdir()] == [("file", "first")]
