"""The copy of the repository in which mutations are tried."""

import subprocess

from tools import mutation


def test_code_that_is_gone_from_the_repository_is_removed_from_its_copy_and_from_mutmuts(tmp_path):
    source, copy = tmp_path / "source", tmp_path / "copy"
    gone = ("lessons_lib/gone.py", "tests/unit/test_gone.py", "mutants/tests/unit/test_gone.py")
    kept = ("tests/unit/test_kept.py", "mutants/tests/unit/test_kept.py")
    for path in (source / kept[0], *(copy / name for name in gone + kept)):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    subprocess.run(["git", "init", "-q", source], check=True)
    mutation.refresh(source, copy)
    assert {path.relative_to(copy).as_posix() for path in copy.rglob("*.py")} == {*kept}
