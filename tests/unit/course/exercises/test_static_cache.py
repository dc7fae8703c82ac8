"""Exercises of the static cache: each plausible mistake fails, and says how."""

import json

import torch

from lessons_lib.course.lessons import find
from lessons_lib.data import RESULTS


def test_a_position_too_far_is_refused(checked):
    def write(forward, ids, n):
        logits, new = forward(ids, list(range(len(ids)))), []
        for i in range(n):
            new.append(int(logits.argmax()))
            if i < n - 1:
                logits = forward(new[-1:], [len(ids) + i + 1])
        return new

    assert "needs a slot that is not there" in checked("03.1", write)


def test_feeding_the_last_token_is_refused(checked):
    def write(forward, ids, n):
        logits, new = forward(ids, list(range(len(ids)))), []
        for i in range(n):
            new.append(int(logits.argmax()))
            logits = forward(new[-1:], [len(ids) + i])
        return new

    assert "needs a slot that is not there" in checked("03.1", write)


def test_a_ring_that_forgets_to_wrap_or_hides_old_slots_fails(checked):
    assert "not yet" in checked("03.2", lambda position, slots: (position, torch.arange(slots)[None] <= position))
    hidden = lambda position, slots: (position % slots, torch.arange(slots)[None] <= position % slots)  # noqa: E731
    assert "not yet" in checked("03.2", hidden)


def test_a_ring_by_python_numbers_gives_the_right_result_and_is_refused(checked):
    def slot_and_mask(position, slots):
        at = int(position)
        return torch.tensor([at % slots]), torch.arange(slots)[None] <= at

    assert "The results are right, but" in checked("03.2", slot_and_mask)


def test_a_penalty_by_a_python_length_is_refused(checked):
    def penalize(logits, history, length, factor):
        seen = history[: int(length)]
        scores = logits[seen]
        return logits.scatter(0, seen, torch.where(scores > 0, scores / factor, scores * factor))

    assert "The results are right, but" in checked("03.3", penalize)


def test_a_penalty_on_garbage_fails(checked):
    def penalize(logits, history, length, factor):
        seen = torch.where(history < len(logits), history, history[0])
        scores = logits[seen]
        return logits.scatter(0, seen, torch.where(scores > 0, scores / factor, scores * factor))

    assert "gave" in checked("03.3", penalize)


def test_a_penalty_that_looks_garbage_up_fails(checked):
    def penalize(logits, history, length, factor):
        filled = torch.arange(len(history)) < length
        seen = torch.zeros_like(logits).index_add(0, history, filled.to(logits.dtype)) > 0
        return torch.where(seen, torch.where(logits > 0, logits / factor, logits * factor), logits)

    assert " raised " in checked("03.3", penalize)


def test_a_gpu_that_waits_for_the_host_to_have_launched_fails(checked):
    def gain(config, bandwidth, eager, graph):
        on_gpu = config.num_layers * graph + 2 * config.weights / bandwidth
        return (config.num_layers * eager + on_gpu) / on_gpu

    assert "03.4: not yet" in checked("03.4", gain)


def test_a_graph_whose_kernels_take_no_time_beside_reading_fails(checked):
    def gain(config, bandwidth, eager, graph):
        reading = 2 * config.weights / bandwidth
        return max(config.num_layers * eager, reading) / max(config.num_layers * graph, reading)

    assert "03.4: not yet" in checked("03.4", gain)


def test_the_lesson_quotes_the_stored_run_on_a_gpu():
    steps = json.loads((RESULTS / "gpu.json").read_text(encoding="utf-8"))["steps"]["bf16"]
    lesson = next(lesson for lesson in find() if lesson.number == "03")
    text = "\n".join(cell.source for cell in lesson.read().cells)
    assert f"takes {steps['eager']:.2f} ms eager and {steps['graph']:.2f} ms as a CUDA graph" in text
    assert f"Reading the weights needs {steps['limit']:.2f} ms" in text
    assert f"the small model's {steps['eager'] / steps['graph']:.1f}" in text
