"""`lessons compare`: what it runs, what it recommends, what it writes, and what remains after Ctrl-C."""

import json
from itertools import islice

import pytest
import torch

from lessons_lib import cli
from lessons_lib.cli import compare
from lessons_lib.comparison import Comparison
from lessons_lib.measure import machine
from lessons_lib.quantization.model import FORMATS


@pytest.fixture(autouse=True)
def quiet_machine(monkeypatch):
    monkeypatch.setattr(machine, "busy_warning", lambda: "")


@pytest.fixture
def compared(checkpoints, tmp_path):
    """compared(model, *words, prompts=text of a file) -> (exit status, the record that was written; {} without one)."""

    def run(model: str, *words: str, prompts: str = "one two one two\na b c a b c\n") -> tuple[int, dict]:
        (tmp_path / "prompts.txt").write_text(prompts, encoding="utf-8")
        call = ["compare", "--model", str(checkpoints / model), "--device", "cpu", "--dtype", "fp32"]
        status = cli.main(
            [*call, "--prompts", str(tmp_path / "prompts.txt"), "--output", str(tmp_path / "out"), *words]
        )
        record = tmp_path / "out" / "comparison.json"
        return status, json.loads(record.read_text()) if record.exists() else {}

    return run


def test_a_model_outside_our_family_is_compared_on_prompts_of_a_file(compared, checkpoints, tmp_path, capsys):
    prompts = f"one two one two one two\n\na b c a b c\n{'long ' * 400}\n"
    status, record = compared("gpt2", "--max-new-tokens", "12", prompts=prompts)
    out, err = capsys.readouterr()
    assert status == 0 and "gpt2 in fp32 on" in out and "2 prompts, up to 12 new tokens each" in out
    assert "Not tested: compiling, batches of several requests, trained Medusa heads, a draft model" in out
    assert f"`lessons probe --model {checkpoints / 'gpt2'}`" in out and "W8A8" not in out
    assert "2 prompts, one run each of up to 12 tokens, too few for an interval; more of your own --prompts make" in out
    assert "1 of 3 prompts do not fit the context of 1600" in err
    assert "decoding, times as fast on prompt 1 prompt 2" in " ".join(out.split())
    names = ["plain", "prompt lookup", "lookahead", "transformers", "transformers, prompt lookup"]
    assert [of["name"] for of in record["techniques"]] == names and record["complete"]
    assert all(of["same_tokens"] == [True, True] for of in record["techniques"][1:])
    assert {(run["technique"], run["prompt"]) for run in record["runs"]} == {
        (name, i) for name in names for i in (0, 1)
    }
    assert all(run["new_tokens"] == 12 and run["text"] for run in record["runs"]) and record["recommendation"] in out
    assert (tmp_path / "out" / "comparison.png").read_bytes().startswith(b"\x89PNG")


def test_the_installed_command_compares_the_courses_prompts_with_quantized_forms_and_a_draft(
    checkpoints, lessons, tmp_path
):
    done = lessons("compare", "--model", checkpoints / "llama", "--draft", checkpoints / "gpt2", "--device", "cpu",
                   "--dtype", "fp32", "--max-new-tokens", 6)  # fmt: skip
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "comparison" / "comparison.json").read_text())
    found = {of["name"]: of for of in record["techniques"]}
    draft = f"draft {checkpoints / 'gpt2'}"
    assert list(found) == ["plain", "prompt lookup", "lookahead", draft, *FORMATS, "transformers",
                           "transformers, prompt lookup"]  # fmt: skip
    assert all(
        found[name]["same_tokens"] == [True] * 8 for name in ("prompt lookup", "lookahead", draft, "transformers")
    )
    assert found["W4A16"]["memory"] < found["W8A16"]["memory"] < found["plain"]["memory"] < found[draft]["memory"]
    assert "decoding, times as fast on code summarization chat writing" in " ".join(done.stdout.split())
    assert "W8A8, W8A16, W4A16, W4A8: bits of weights (W)" in done.stdout
    assert "trained Medusa heads." in done.stdout and "name one with --draft" not in done.stdout
    assert done.stdout.rstrip().endswith("comparison/comparison.json")


def test_a_busy_machine_is_named_in_the_recommendation(compared, capsys, monkeypatch):
    monkeypatch.setattr(machine, "busy_warning", lambda: "Other programs use 1.5 of this machine's 2 cores.")
    _, record = compared("gpt2", "--max-new-tokens", "3")
    out, err = capsys.readouterr()
    assert record["recommendation"].endswith("Other programs use 1.5 of this machine's 2 cores.")
    assert record["recommendation"] in out and "Other programs" in err


def test_a_short_time_shortens_the_texts_and_says_so(compared, capsys):
    _, record = compared("gpt2", "--max-new-tokens", "24", "--minutes", "0.0001")
    assert record["max_new_tokens"] == 16 and {run["new_tokens"] for run in record["runs"]} == {16}
    out = capsys.readouterr().out
    assert "because --minutes 0.0001 allowed no more; --minutes 0 (all, in about 1 minute) and more prompts" in out
    assert compared("gpt2", "--max-new-tokens", "24", "--minutes", "0")[1]["max_new_tokens"] == 24


@pytest.mark.parametrize("count, error, status, said", [  # five untimed runs, then those of the first prompt
    (8, KeyboardInterrupt(), 130, "stopped; this is what was measured"),
    (8, torch.OutOfMemoryError("CUDA out of memory"), 1, "out of memory; this is what was measured"),
    (5, KeyboardInterrupt(), 2, "Nothing was measured"),
    (5, torch.OutOfMemoryError("CUDA out of memory"), 2, "does not fit into this device's memory"),
])  # fmt: skip
def test_what_was_measured_before_an_interruption_is_shown(compared, count, error, status, said, capsys, monkeypatch):
    runs = Comparison.runs

    def interrupted(self, seconds):
        yield from islice(runs(self, seconds), count)
        raise error

    monkeypatch.setattr(Comparison, "runs", interrupted)
    found, record = compared("gpt2", "--max-new-tokens", "6")
    out, err = capsys.readouterr()
    assert found == status and said in err
    if count == 8:
        names = ["plain", "prompt lookup", "lookahead"]
        assert [of["name"] for of in record["techniques"]] == names and not record["complete"] and "lookahead" in out
    else:
        assert not record


def test_a_model_without_attention_is_compared_and_what_cannot_run_says_why(compared, capsys):
    status, record = compared("mamba", "--max-new-tokens", "4")
    problems = {of["name"]: of.get("problem", "") for of in record["techniques"]}
    assert status == 0 and [name for name, problem in problems.items() if not problem] == ["plain", "transformers"]
    assert "stateful models" in problems["transformers, prompt lookup"]
    assert record["recommendation"].startswith("Decode plainly: no other technique was measured with this model")
    assert "lessons probe" not in capsys.readouterr().out  # which does not know this model's sizes


def test_a_format_that_the_model_does_not_allow_gets_a_row_that_says_why(checkpoints, monkeypatch):
    from lessons_lib import load
    from lessons_lib.models.hub import LanguageModel

    def target(self, weights=None, windows=()):
        raise ValueError("groups of 32 do not divide rows of 20 weights; choose smaller groups")

    model = load(checkpoints / "gpt2", "cpu", "fp32")
    monkeypatch.setattr(LanguageModel, "target", target)
    technique = compare.quantized(model, "W4A16")
    made = Comparison(model.network, [1, 2], {"plain": None, "W4A16": technique}, 4, 1)
    assert list(made.runs()) and made.rows[1].problem.startswith("groups of 32 do not divide")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--prompts", "missing.txt"], "missing.txt"),
        (["--max-new-tokens", "1"], "at least 2"),
        (["--minutes", "nan"], "--minutes must be 0 or more"),
        (["--max-new-tokens", "9999"], "No prompt leaves room for 9999 new tokens in the context of 1600"),
        (["--draft", "no-such-model"], "Unknown model 'no-such-model'"),
    ],
)
def test_what_it_cannot_compare_is_said_in_a_sentence(compared, capsys, words, said):
    assert compared("gpt2", *words) == (2, {})
    assert said in capsys.readouterr().err


def test_an_output_that_cannot_be_written_is_refused_before_the_model_is_loaded(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(compare, "open_model", None)  # calling it would fail
    (tmp_path / "file").touch()
    for output in ("file", "file/folder"):
        assert cli.main(["compare", "--output", str(tmp_path / output)]) == 2
        assert f"--output: {tmp_path / 'file'} is no folder that can be written" in capsys.readouterr().err


def test_control_c_in_a_later_round_counts_the_rounds_that_are_compared(checkpoints, tmp_path, capsys, monkeypatch):
    runs = Comparison.runs

    def interrupted(self, seconds):
        yield from islice(runs(self, seconds), 12)  # five untimed runs, a round, two runs of the next without plain
        raise KeyboardInterrupt

    monkeypatch.setattr(Comparison, "runs", interrupted)
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("one two one two\n", encoding="utf-8")
    call = ["--model", str(checkpoints / "gpt2"), "--device", "cpu", "--max-new-tokens", "6", "--output", str(tmp_path)]
    assert cli.main(["compare", *call, "--prompts", str(prompts)]) == 130
    assert "This rests on 1 prompt, one run each of up to 6 tokens" in capsys.readouterr().out
