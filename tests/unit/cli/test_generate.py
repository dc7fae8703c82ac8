"""`lessons generate`: the text on stdout, the counts on stderr, with every proposer."""

import re

import pytest

from lessons_lib import cli, generate, load

PROMPT = "one two one two one"


@pytest.fixture(scope="module")
def expected(checkpoints) -> str:
    """Plain greedy decoding's text."""
    model = load(checkpoints / "gpt2", "cpu", "fp32")
    return generate(model, PROMPT, max_new_tokens=24).text


def said(capsys, *words) -> tuple[str, str]:
    assert cli.main(["generate", PROMPT, "--device", "cpu", "--dtype", "fp32", "--max-new-tokens", "24", *words]) == 0
    return capsys.readouterr()


@pytest.mark.parametrize("how", [[], ["--proposer", "prompt-lookup"], ["--proposer", "jacobi"], ["--draft"]])
def test_the_text_is_that_of_plain_decoding_whatever_drafts(checkpoints, capsys, expected, how):
    how = [*how, str(checkpoints / "gpt2")] if how == ["--draft"] else how
    out, err = said(capsys, "--model", str(checkpoints / "gpt2"), "--stats", *how)
    assert out == expected + "\n"
    passes, tau = re.search(r"24 tokens in (\d+) forward passes: .* then ([\d.]+) tokens per pass", err).groups()
    assert int(passes) == 24 or how and float(tau) == pytest.approx(23 / (int(passes) - 1), abs=0.005)
    assert "--draft" not in how or int(passes) == 5  # it drafts 5 tokens, all of them right


def test_the_models_own_first_layers_draft_its_text(checkpoints, capsys):
    model = load(checkpoints / "llama", "cpu", "fp32")
    out, err = said(capsys, "--model", str(checkpoints / "llama"), "--stats", "--exit-layer", "2")  # all of its layers
    assert out == generate(model, PROMPT, max_new_tokens=24).text + "\n"
    assert "24 tokens in 6 forward passes" in err


def test_only_the_text_is_printed_without_stats(checkpoints, capsys, expected):
    assert said(capsys, "--model", str(checkpoints / "gpt2")) == (expected + "\n", "")


def test_a_temperature_samples(checkpoints, capsys, expected):
    texts = {said(capsys, "--model", str(checkpoints / "gpt2"), "--temperature", "2")[0] for _ in range(3)}
    assert len(texts | {expected + "\n"}) > 2


def test_a_chat_model_reads_the_prompt_as_a_message(checkpoints, capsys, tmp_path):
    model = load(checkpoints / "llama", "cpu", "fp32")
    model.tokenizer.chat_template = "{% for m in messages %}[{{ m['content'] }}]{% endfor %}"
    model.network.save_pretrained(tmp_path)
    model.tokenizer.save_pretrained(tmp_path)
    out, _ = said(capsys, "--model", str(tmp_path))
    assert out == generate(model, f"[{PROMPT}]", max_new_tokens=24).text + "\n"


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--max-new-tokens", "5000"], "do not fit the context of 1600"),
        (["--temperature", "-1"], "temperature"),
        (["--draft", "no-such-model"], "Unknown model 'no-such-model'"),
        (["--exit-layer", "1"], "EarlyExit needs layer ranges, which TransformersTarget does not offer"),
    ],
)
def test_what_it_cannot_do_is_said_in_a_sentence(checkpoints, capsys, words, problem):
    assert cli.main(["generate", PROMPT, "--model", str(checkpoints / "gpt2"), "--device", "cpu", *words]) == 2
    assert problem in capsys.readouterr().err


def test_the_installed_command_streams_and_counts(checkpoints, lessons, expected):
    words = ["generate", PROMPT, "--model", checkpoints / "gpt2", "--max-new-tokens", 24, "--dtype", "fp32", "--stats"]
    done = lessons(*words, "--device", "cpu")
    assert (done.returncode, done.stdout) == (0, expected + "\n"), done.stderr
    assert done.stderr.startswith("24 tokens in 24 forward passes")
