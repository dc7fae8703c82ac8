"""What `mutation` does around mutmut: the copy, the counting, the reasons."""

import json
import os
import re
import subprocess
import tomllib

import pytest

from lessons_lib.course import mutation

NAMES = {f"lessons_lib.{room}.{n}": code for room, n, code in [
    ("caches.masks", "x_causal__mutmut_1", 1),
    ("caches.masks", "x_causal__mutmut_2", 0),
    ("serving.pool", "xǁPoolǁfree__mutmut_1", 36),
    ("serving.pool", "xǁPoolǁfree__mutmut_2", None),
]}  # fmt: skip


@pytest.fixture
def copy(tmp_path, monkeypatch):
    """A folder as mutmut leaves it; asked[] lists the calls to mutmut, which changes a line in every function."""
    meta = tmp_path / "copy" / "mutants" / "lessons_lib" / "all.py.meta"
    meta.parent.mkdir(parents=True)
    meta.write_text(json.dumps({"exit_code_by_key": NAMES}))
    (tmp_path / "copy" / "mutants" / "mutmut-stats.json").write_text("{}")
    monkeypatch.setattr(mutation, "COPY", tmp_path / "copy")
    monkeypatch.setattr(mutation, "refresh", lambda source, copy: None)
    monkeypatch.setattr(mutation, "EXPLAINED", mutation.ROOT / "build" / "none.toml")
    monkeypatch.setattr(mutation, "explained", lambda file: set())
    asked = []

    def mutmut(*arguments, quiet=False):
        asked.append(arguments)
        return f"--- a\n+++ b\n@@ -1 +1 @@\n def f():\n-    return 1\n+    return 2  # {arguments[-1]}\n"

    monkeypatch.setattr(mutation, "mutmut", mutmut)
    return asked


def test_what_nobody_noticed_is_tried_again_and_then_shown(copy, capsys):
    assert mutation.mutate(count=4, seed=0) == 1
    assert copy[1] == ("run", *(name for name in sorted(NAMES) if NAMES[name] in (0, None)))
    said = capsys.readouterr().out
    assert "caches                            1 of    2 caught" in said and "2 of    4 caught, 50.0%; 2 not" in said
    assert "x_causal__mutmut_2 (unnoticed)\n- return 1\n+ return 2" in said and "free__mutmut_2 (not tried)" in said


def test_tests_that_fail_by_themselves_are_said_to(copy, capsys):
    (mutation.COPY / "mutants" / "mutmut-stats.json").unlink()
    assert mutation.mutate(count=4, seed=0) == 2
    assert "The tests fail before anything is broken" in capsys.readouterr().err


def test_a_sample_is_the_same_for_the_same_seed(copy, capsys):
    names = {mutation.mutate(count=2, seed=seed) and capsys.readouterr().out for seed in (1, 1)}
    assert len(names) == 1


def test_with_a_reason_a_change_is_no_complaint(copy, capsys, monkeypatch):
    change = "- return 1\n+ return 2  # {}"
    held = {(mutation.function_of(name), change.format(name)) for name in NAMES}
    monkeypatch.setattr(mutation, "explained", lambda file: held)
    assert mutation.mutate(count=4, seed=0) == 0
    assert "of which 2 change nothing" in capsys.readouterr().out


def test_reasons_are_read_by_function_and_changed_lines(tmp_path):
    file = tmp_path / "mutants.toml"
    file.write_text('[[mutant]]\nfunction = "a.x_f"\nchange = """\n- 1\n+ 2\n"""\nwhy = "the same"\n')
    assert mutation.explained(file) == {("a.x_f", "- 1\n+ 2")}


def test_every_change_that_is_explained_takes_a_line_away_puts_one_there_and_has_a_reason():
    entries = tomllib.loads(mutation.EXPLAINED.read_text(encoding="utf-8"))["mutant"]
    assert all(re.search(f"^[{sign}] ", entry["change"], re.M) for entry in entries for sign in "+-")
    assert all(entry["why"] and entry["function"].startswith("lessons_lib.") for entry in entries)
    assert len(mutation.explained(mutation.EXPLAINED)) == len(entries)


def test_the_copy_follows_the_files_git_knows_and_leaves_the_others_time(tmp_path):
    source, copy = tmp_path / "source", tmp_path / "copy"
    source.mkdir()
    subprocess.run(["git", "init", "-q", source], check=True)
    for name, text in {"a.py": "1", "b.py": "1", ".gitignore": "c.py", "c.py": "1"}.items():
        (source / name).write_text(text)
    mutation.refresh(source, copy)
    assert sorted(path.name for path in copy.iterdir()) == [".gitignore", "a.py", "b.py"]
    for name in ("a.py", "b.py"):
        os.utime(copy / name, (1, 1))
    (source / "b.py").write_text("2")
    mutation.refresh(source, copy)
    assert (copy / "a.py").stat().st_mtime == 1 and (copy / "b.py").stat().st_mtime > 1
