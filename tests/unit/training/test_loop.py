"""The training loop: each epoch reads each text once, packed texts do not mix, and the rate rises and falls."""

import os
import signal
from dataclasses import dataclass, field

import pytest
import torch

from lessons_lib.training import loop
from lessons_lib.training.distill import Recipe


def test_every_epoch_reads_every_text_once():
    order = loop.schedule([10] * 12, Recipe(tokens=30, seed=3))
    first, second = ([index for _ in range(4) for index in next(order)] for _ in range(2))
    assert sorted(first) == sorted(second) == list(range(12)) and first != second


def test_without_texts_there_is_no_batch_to_wait_for():
    with pytest.raises(ValueError, match="no texts to train on"):
        next(loop.schedule([], Recipe()))


def test_a_text_in_a_pack_is_read_as_if_alone(target):
    together = loop.read_texts(target, [[5, 80, 3], [7, 9], [1]])
    alone = torch.cat([loop.read_texts(target, [ids]) for ids in ([5, 80, 3], [7, 9], [1])])
    assert torch.allclose(together, alone, atol=1e-12)


def test_the_rate_rises_in_a_line_and_falls_along_a_cosine():
    recipe = Recipe(warmup=4, steps=12)
    paces = [loop.pace(step, recipe) for step in range(13)]
    assert paces[:5] == [0.25, 0.5, 0.75, 1, 1] and paces[8] == pytest.approx(0.5) and paces[12] == pytest.approx(0)


@dataclass(kw_only=True)
class Walk(loop.TrainingRun):
    """A run of one weight."""

    weight: torch.nn.Parameter = field(default_factory=lambda: torch.nn.Parameter(torch.ones(3)))

    def weights(self):
        return {"weight": self.weight}


def walk(folder, stop_at=None, by=signal.SIGINT):
    """Train a Walk of 5 steps from what the folder holds; during step `stop_at` the process gets a signal."""

    def start(_):
        made = Walk(recipe=Recipe(steps=5, warmup=1, tokens=4), optimizers=[])
        made.optimizers = [torch.optim.AdamW([made.weight])]
        return made

    run = loop.resume(Recipe(steps=5, warmup=1, tokens=4), folder, start)

    def one_step(indices):
        if run.step + 1 == stop_at:
            os.kill(os.getpid(), by)
        run.weight.grad = torch.tensor([1.0, float(run.step), float(sum(indices))])
        loop.update(run, {"loss": 0.0})

    loop.train(run, [2] * 6, one_step, folder, None, "walk")
    return run


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_interrupted_ends_its_step_and_goes_on_as_if_it_had_not_been(tmp_path, by):
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    whole = walk(tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt, match="saved at step 2; the same command"):
        walk(tmp_path / "cut", stop_at=2, by=by)
    assert loop.read_checkpoint(tmp_path / "cut")["step"] == 2
    assert torch.equal(walk(tmp_path / "cut").weight, whole.weight)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers


def test_a_second_interrupt_stops_a_step_at_once():
    with pytest.raises(KeyboardInterrupt), loop.asked_to_stop() as asked:
        os.kill(os.getpid(), signal.SIGINT)
        assert asked.is_set()
        os.kill(os.getpid(), signal.SIGINT)
        pytest.fail("went on")
