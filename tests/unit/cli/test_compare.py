"""`lessons compare`: what it runs, what it recommends, what it writes, and what remains after Ctrl-C."""

import json
from itertools import islice

import pytest
import torch

from lessons_lib import cli
from lessons_lib.cli import compare
from lessons_lib.comparison import Comparison
from lessons_lib.measure import machine
from lessons_lib.models import tiny
from lessons_lib.quantization.model import FORMATS


@pytest.fixture(autouse=True)
def quiet_machine(monkeypatch):
    monkeypatch.setattr(machine, "busy_warning", lambda: "")


def test_a_model_outside_our_family_is_compared_on_prompts_of_a_file(checkpoints, tmp_path, capsys):
    prompts = tmp_path / "prompts.txt"
    prompts.write_text(f"one two one two one two\n\na b c a b c\n{'long ' * 400}\n", encoding="utf-8")
    call = ["--model", str(checkpoints / "gpt2"), "--device", "cpu", "--dtype", "fp32", "--max-new-tokens", "12"]
    assert cli.main(["compare", *call, "--prompts", str(prompts), "--output", str(tmp_path / "out")]) == 0
    out, err = capsys.readouterr()
    assert "gpt2 in fp32 on" in out and "2 prompts, up to 12 new tokens each" in out
    assert "Not tested: compiling, batches of several requests, trained Medusa heads, a draft model" in out
    assert f"`lessons probe --model {checkpoints / 'gpt2'}`" in out and "W8A8" not in out
    assert " MB in all rows: weights, and the longest text's KV cache" in out
    assert "whole request: with the prompt's forward pass" in out
    assert "2 prompts, one run each of up to 12 tokens, too few for an interval; more of your own --prompts make" in out
    assert "1 of 3 prompts do not fit the context of 1600" in err and "kind of text" not in out
    record = json.loads((tmp_path / "out" / "comparison.json").read_text())
    names = ["plain", "prompt lookup", "lookahead", "transformers", "transformers, prompt lookup"]
    assert [of["name"] for of in record["techniques"]] == names and record["complete"]
    assert all(of["same_tokens"] == [True, True] for of in record["techniques"][1:])
    assert {(run["technique"], run["prompt"]) for run in record["runs"]} == {
        (name, i) for name in names for i in (0, 1)
    }
    assert all(run["new_tokens"] == 12 for run in record["runs"]) and record["recommendation"] in out
    assert all(isinstance(run["text"], str) and run["text"] for run in record["runs"])
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
    assert "W8A8, W8A16, W4A16, W4A8: bits of weights (W)" in done.stdout and "memory  " in done.stdout
    assert "trained Medusa heads." in done.stdout and "name one with --draft" not in done.stdout
    assert done.stdout.rstrip().endswith("comparison/comparison.json")


def test_a_busy_machine_is_named_in_the_recommendation(checkpoints, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(machine, "busy_warning", lambda: "Other programs use 1.5 of this machine's 2 cores.")
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("one two\nthree four\n", encoding="utf-8")
    call = ["--model", str(checkpoints / "gpt2"), "--device", "cpu", "--max-new-tokens", "3", "--prompts", str(prompts)]
    assert cli.main(["compare", *call, "--output", str(tmp_path)]) == 0
    out, err = capsys.readouterr()
    said = json.loads((tmp_path / "comparison.json").read_text())["recommendation"]
    assert said.endswith("Other programs use 1.5 of this machine's 2 cores.") and said in out
    assert "Other programs" in err
    assert "decoding, times as fast on prompt 1 prompt 2" in " ".join(out.split())


def test_a_short_time_shortens_the_texts_and_says_so(checkpoints, tmp_path, capsys):
    call = ["--model", str(checkpoints / "gpt2"), "--device", "cpu", "--output", str(tmp_path)]
    call += ["--max-new-tokens", "24"]
    assert cli.main(["compare", *call, "--minutes", "0.0001"]) == 0
    record = json.loads((tmp_path / "comparison.json").read_text())
    assert record["max_new_tokens"] == 16 and {run["new_tokens"] for run in record["runs"]} == {16}
    out = capsys.readouterr().out
    assert "up to 16 tokens, because --minutes 0.0001 allowed no more; --minutes 0 (all, in about 1 minute)" in out
    assert cli.main(["compare", *call, "--minutes", "0"]) == 0
    assert json.loads((tmp_path / "comparison.json").read_text())["max_new_tokens"] == 24


def test_control_c_leaves_what_was_measured(checkpoints, tmp_path, capsys, monkeypatch):
    runs = Comparison.runs

    def interrupted(self, seconds):
        for count, name in enumerate(runs(self, seconds)):
            if count == 7:  # five untimed runs, then three techniques on the first prompt
                raise KeyboardInterrupt
            yield name

    monkeypatch.setattr(Comparison, "runs", interrupted)
    call = ["--model", str(checkpoints / "gpt2"), "--device", "cpu", "--max-new-tokens", "6", "--output", str(tmp_path)]
    assert cli.main(["compare", *call]) == 130
    out, err = capsys.readouterr()
    assert "this is what was measured" in err and "lookahead" in out and "transformers, " not in out
    record = json.loads((tmp_path / "comparison.json").read_text())
    assert not record["complete"] and [of["name"] for of in record["techniques"]] == [
        "plain",
        "prompt lookup",
        "lookahead",
    ]


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


@pytest.mark.parametrize("count, status, said", [
    (8, 1, "out of memory; this is what was measured"),  # five untimed runs, three of the first prompt
    (5, 2, "does not fit into this device's memory"),
])  # fmt: skip
def test_out_of_memory_at_a_later_prompt_leaves_what_was_measured(
    count, status, said, checkpoints, tmp_path, capsys, monkeypatch
):
    runs = Comparison.runs

    def too_long(self, seconds):
        yield from islice(runs(self, seconds), count)
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(Comparison, "runs", too_long)
    call = ["--model", str(checkpoints / "gpt2"), "--device", "cpu", "--max-new-tokens", "6", "--output", str(tmp_path)]
    assert cli.main(["compare", *call]) == status
    out, err = capsys.readouterr()
    assert said in err and ("lookahead" in out) == (status == 1)


def test_control_c_before_any_measurement_says_so(checkpoints, tmp_path, capsys, monkeypatch):
    def interrupted(self, seconds):
        raise KeyboardInterrupt

    monkeypatch.setattr(Comparison, "runs", interrupted)
    call = ["--model", str(checkpoints / "gpt2"), "--device", "cpu", "--output", str(tmp_path / "out")]
    assert cli.main(["compare", *call]) == 2 and "Nothing was measured" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_model_without_attention_is_compared_and_what_cannot_run_says_why(checkpoints, tmp_path, capsys):
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("one two one two\na b c a b c\n", encoding="utf-8")
    call = ["--model", str(checkpoints / "mamba"), "--device", "cpu", "--dtype", "fp32", "--max-new-tokens", "4"]
    assert cli.main(["compare", *call, "--prompts", str(prompts), "--output", str(tmp_path)]) == 0
    record = json.loads((tmp_path / "comparison.json").read_text())
    problems = {of["name"]: of.get("problem", "") for of in record["techniques"]}
    assert [name for name, problem in problems.items() if not problem] == ["plain", "transformers"]
    assert "stateful models" in problems["transformers, prompt lookup"]
    assert record["recommendation"].startswith("Decode plainly: no other technique was measured with this model")
    assert "lessons probe" not in capsys.readouterr().out  # which does not know this model's sizes


def test_control_c_after_a_technique_that_cannot_run_says_that_nothing_was_measured(
    checkpoints, tmp_path, capsys, monkeypatch
):
    runs = Comparison.runs

    def interrupted(self, seconds):
        yield from islice(runs(self, seconds), 5)  # the untimed runs
        raise KeyboardInterrupt

    monkeypatch.setattr(Comparison, "runs", interrupted)
    call = ["--model", str(checkpoints / "mamba"), "--device", "cpu", "--max-new-tokens", "4"]
    assert cli.main(["compare", *call, "--output", str(tmp_path / "out")]) == 2
    assert "Nothing was measured" in capsys.readouterr().err


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
        (["--minutes", "-1"], "--minutes must be 0 or more"),
        (["--minutes", "nan"], "--minutes must be 0 or more"),
        (["--max-new-tokens", "9999"], "No prompt leaves room for 9999 new tokens in the context of 1600"),
        (["--draft", "no-such-model"], "Unknown model 'no-such-model'"),
    ],
)
def test_what_it_cannot_compare_is_said_in_a_sentence(checkpoints, capsys, words, said):
    assert cli.main(["compare", "--model", str(checkpoints / "gpt2"), "--device", "cpu", *words]) == 2
    assert said in capsys.readouterr().err


def test_an_output_that_cannot_be_written_is_refused_before_the_model_is_loaded(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(compare, "open_model", None)  # calling it would fail
    (tmp_path / "file").touch()
    for output in ("file", "file/folder"):
        assert cli.main(["compare", "--output", str(tmp_path / output)]) == 2
        assert f"--output: {tmp_path / 'file'} is no folder that can be written" in capsys.readouterr().err


def test_a_technique_without_memory_does_not_hide_the_size_that_the_others_share():
    full = compare.unavailable("out of memory")
    made = Comparison(tiny(), [1, 2, 3], {"plain": None, "full": full}, max_new_tokens=4, repeats=1)
    assert list(made.runs()) and "out of memory" in repr(made)
    assert " MB in all rows" in compare.legend(made) and "empty where unknown" not in compare.legend(made)
