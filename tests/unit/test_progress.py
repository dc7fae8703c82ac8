"""Bars and lines for people, lines alone for batch runs."""

import os

import pytest
from jupyter_client.manager import start_new_kernel

from lessons_lib import progress


@pytest.mark.parametrize("batch", ["0", "1"])
def test_a_batch_run_draws_no_bar_and_keeps_the_line(monkeypatch, capsys, batch):
    monkeypatch.setenv(progress.VARIABLE, batch)
    assert list(progress.bar([1, 2], desc="Counting")) == [1, 2]
    progress.say("done")
    shown = capsys.readouterr().err
    assert ("Counting" in shown) == (batch == "0") and shown.endswith("done\n")


@pytest.fixture(scope="module")
def ask():
    """Runs code in a kernel of its own as a front end does that can, or cannot, answer input(); what it prints."""
    environment = {name: value for name, value in os.environ.items() if name != progress.VARIABLE}
    manager, client = start_new_kernel(env=environment, extra_arguments=["--log-level=50"])

    def run(code, **options):
        printed = []
        hook = lambda message: printed.append(message["content"].get("text", ""))  # noqa: E731
        client.execute_interactive(code, output_hook=hook, timeout=60, **options)
        return "".join(printed).strip()

    yield run
    client.stop_channels()
    manager.shutdown_kernel(now=True)


ASK = "from lessons_lib import progress; print(progress.batch())"


def test_a_notebook_is_live_where_its_front_end_can_answer_and_batch_where_a_program_executes_it(ask):
    assert [ask(ASK, allow_stdin=answers) for answers in (True, False, True)] == ["False", "True", "False"]


@pytest.mark.parametrize("text", ["0", "1"])
def test_the_variable_decides_instead(ask, text):
    change = f"import os; os.environ['LESSONS_LIB_BATCH'] = '{text}'; "
    clear = "; del os.environ['LESSONS_LIB_BATCH']"
    assert ask(change + ASK + clear, allow_stdin=text == "1") == str(text == "1")


def test_a_line_ends_with_how_it_went_also_where_that_raises(capsys):
    with progress.line("lesson") as text:
        text[0] = "half done"
    for error in (ZeroDivisionError, KeyboardInterrupt):
        with pytest.raises(error), progress.line("model"):
            raise error
    said = [line.split()[:-2] for line in capsys.readouterr().out.splitlines()]
    assert said == [["lesson", "half", "done"], ["model", "FAILED"], ["model", "stopped"]]
