from lessons_lib import progress


def test_a_bar_and_a_line_are_shown_to_a_person(monkeypatch, capsys):
    monkeypatch.delenv("LESSONS_LIB_BATCH", raising=False)
    assert list(progress.bar([1, 2], desc="Counting")) == [1, 2]
    progress.say("done")
    shown = capsys.readouterr().err
    assert "Counting" in shown and shown.endswith("done\n")


def test_batch_runs_see_neither(monkeypatch, capsys):
    monkeypatch.setenv("LESSONS_LIB_BATCH", "1")
    assert list(progress.bar([1, 2], desc="Counting")) == [1, 2]
    progress.say("done")
    assert capsys.readouterr() == ("", "")
