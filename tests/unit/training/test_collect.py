"""Many texts at once are the texts that one at a time would be, and collecting them can be cut short anywhere."""

from collections import Counter
from dataclasses import replace
from itertools import islice

import pytest
import torch

from lessons_lib.decoding.generate import generate
from lessons_lib.decoding.targets import DecoderTarget
from lessons_lib.training import collect
from lessons_lib.training.collect import Text, Writer, choose, number_of
from lessons_lib.training.prompts import UserTurn, interleave

TEXTS = ["one", "two two", "a", "b" * 9, "fourth", "five", "six"]

PROMPTS = [UserTurn(n, "chat", text) for n, text in enumerate(TEXTS)]


def test_texts_written_together_equal_texts_written_alone(target):
    prompts = [[5, 80, 3], [7], [9, 9, 9, 9, 1, 60, 2, 2], [30, 31], [11, 12, 13, 14]]
    alone = [generate(DecoderTarget(target, eos=(4, 5)), ids, max_new_tokens=9).ids for ids in prompts]
    writer = Writer(target, eos=(4, 5), rows=2, capacity=20, max_new=9)
    together = {text.key: text for text in writer.write(Text(str(n), list(ids), len(ids)) for n, ids in enumerate(prompts))}  # fmt: skip  # noqa: E501
    assert [together[str(n)].ids[len(ids) :] for n, ids in enumerate(prompts)] == alone


def test_state_i_is_what_the_head_read_to_choose_token_i_plus_1(target, texts):
    for text in texts:
        chosen = (text.hidden @ target.head.weight.T).argmax(-1).tolist()
        assert len(text.hidden) == len(text.ids) - 1
        assert chosen[text.prompt_length - 1 :] == text.ids[text.prompt_length :]


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_texts_that_end_with_their_first_token_leave_none_waiting(target, rows):
    writer = Writer(target, eos=(), rows=rows, capacity=20, max_new=1)
    texts = list(writer.write(Text(str(n), [1, 3 + n], 2) for n in range(5)))
    assert [text.key for text in texts] == ["0", "1", "2", "3", "4"] and {len(text.ids) for text in texts} == {3}


def test_a_sampled_token_follows_the_softmax_and_a_greedy_one_is_the_argmax():
    logits = torch.tensor([[0.0, 1.0, 2.0]]).repeat(4000, 1)
    sampled = torch.tensor(choose(logits, [2.0] * 3999 + [0.0], [torch.Generator().manual_seed(0)] * 4000))
    shares = torch.bincount(sampled[:-1], minlength=3) / 3999
    assert torch.allclose(shares, (logits[0] / 2).softmax(-1), atol=0.03) and sampled[-1] == 2


@pytest.fixture
def small_shards(monkeypatch):
    monkeypatch.setattr(collect, "SHARD", 2)


def run(model, folder, **options):
    return collect.collect(model, PROMPTS, folder, rows=3, max_new=6, sampled=2, **options)


def written(folder):
    return [(text.key, text.ids, text.temperature) for text in collect.read_all(folder)]


def test_prompts_that_are_too_long_are_left_out(model, tmp_path):
    assert run(model, tmp_path, longest=5) == 4
    assert {key for key, _, _ in written(tmp_path)} == {"chat/0", "chat/2", "chat/5", "chat/6"}


@pytest.mark.parametrize("first", [1, 2, 5])
def test_a_collection_cut_short_anywhere_ends_with_the_texts_of_one_go_in_the_same_order(
    model, tmp_path, small_shards, first
):
    assert run(model, tmp_path / "whole") == 7
    assert run(model, tmp_path / "parts", texts=first) == first
    assert run(model, tmp_path / "parts") == run(model, tmp_path / "parts") == 7
    assert sum(temperature > 0 for _, _, temperature in written(tmp_path / "whole")) == 3
    assert written(tmp_path / "parts") == written(tmp_path / "whole")


def test_a_collection_killed_within_a_shard_ends_with_the_texts_of_one_go(model, tmp_path, small_shards, monkeypatch):
    class Killed(Exception):
        pass

    def killed(self, jobs, write=Writer.write):
        yield from islice(write(self, jobs), 3)  # one shard of two is on disk, and the third text is lost
        raise Killed

    run(model, tmp_path / "whole")
    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(Writer, "write", killed)
        run(model, tmp_path / "parts")
    assert len(written(tmp_path / "parts")) == 2
    assert run(model, tmp_path / "parts") == 7 and written(tmp_path / "parts") == written(tmp_path / "whole")


def test_a_text_is_sampled_by_its_own_key_in_every_process():
    assert number_of("chat/1") == 0x00CACFF6C3955F10 != number_of("chat/2")


def test_a_shard_gives_its_texts_back(texts, tmp_path):
    texts = [replace(texts[0], subject="20"), *texts[1:]]
    collect.save(texts, tmp_path / "0.safetensors")
    for text, back in zip(texts, collect.read_all(tmp_path), strict=True):
        assert (text.key, text.ids, text.prompt_length, text.temperature, text.subject) == (
            back.key, back.ids, back.prompt_length, back.temperature, back.subject,
        )  # fmt: skip
        assert torch.equal(text.hidden, back.hidden)


def test_every_prompt_is_planned_under_the_template_and_every_fourth_is_sampled(model):
    planned = list(collect.plan(model.target(), PROMPTS, 4))
    assert [text.temperature for text in planned] == [0, 0, 0, 0.8, 0, 0, 0]
    assert [len(text.ids) for text in planned] == [text.prompt_length for text in planned]
    assert [text.prompt_length for text in planned] == [1 + len(prompt.text) for prompt in PROMPTS]


def test_every_kind_has_its_share_of_sampled_texts(model):
    turns = interleave([UserTurn(n, kind, "a") for kind in "ABCD" for n in range(8)])
    planned = collect.plan(model.target(), turns, 4)
    assert Counter(text.key[0] for text in planned if text.temperature > 0) == dict.fromkeys("ABCD", 2)


def test_the_head_keeps_the_tokens_that_texts_use_most_then_the_lowest_ids():
    text = Text("k", [8, 8, 8, 8, 50, 50, 9, 70], prompt_length=4)
    assert collect.frequent([text], 97, 2).tolist() == [8, 50]
    assert collect.frequent([text], 97, 6).tolist() == [0, 1, 8, 9, 50, 70]
