"""What is measured of a GPU: everything but the recorded graph runs on a CPU, too, on a tiny model."""

import json

import pytest
import torch
from support.targets import decoder_target

from bench import on_gpu, serving
from bench.common import Claim, Measured
from lessons_lib.measure.clock import Ratio, Samples
from lessons_lib.models import tiny


@pytest.fixture
def model(monkeypatch):
    target = decoder_target(tiny(dtype=torch.float32))
    made = type("Model", (), {"device": "cpu", "dtype": torch.float32, "target": lambda self, weights: target})()
    monkeypatch.setattr(serving, "model", lambda: made)
    return target


def test_without_a_gpu_nothing_is_measured_and_it_says_so(monkeypatch, capsys):
    monkeypatch.delenv("LESSONS_LIB_BATCH", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert on_gpu.main() == 1 and "there is none here" in capsys.readouterr().err


def test_a_part_that_there_is_not_is_named_with_those_that_there_are(monkeypatch, capsys):
    monkeypatch.delenv("LESSONS_LIB_BATCH", raising=False)
    assert on_gpu.main(["ladder", "stairs"]) == 2
    assert "stairs: no part" in (said := capsys.readouterr().err) and "steps, ladder, serving" in said


def test_a_step_that_is_recorded_computes_what_the_compiled_step_does(model):
    compiled = on_gpu.CompiledTarget(model.decoder)
    compiled._give_up("not compiled here")
    compiled.widths = [1]
    step, args = on_gpu.step_alone(compiled, [5, 6, 7])
    with torch.no_grad():
        _, logits = step.step(*args)
    cache = model.new_cache(9)
    model.run([on_gpu.plain_block([5, 6, 7], cache)])
    (scores,) = model.run([on_gpu.plain_block([7], cache)])
    torch.testing.assert_close(logits, scores.logits)


def test_what_was_found_is_stored_with_the_machine_part_by_part(model, monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(on_gpu, "RESULTS", tmp_path)
    monkeypatch.setattr(on_gpu, "times", lambda of, rate: {"eager": 2.0, "limit": 1e9 / rate})
    one = Measured(Ratio.of(Samples((2.0,)), Samples((1.0,))), "said")
    monkeypatch.setattr(on_gpu, "CLAIMS", {name: Claim(name, "", "", lambda run: one, False) for name in on_gpu.WAYS})
    monkeypatch.setitem(on_gpu.PARTS, "ladder", lambda lm: [("decoder", {"free": 3.0})])
    assert on_gpu.main() == 0
    found = json.loads((tmp_path / "gpu.json").read_text())
    assert set(found["steps"]) == {"fp32", "int8-weight-only", "int8", "int4"}
    assert found["serving"]["serving/vs-sequential"][::3] == [2.0, "said"] and found["ladder"] == {
        "decoder": {"free": 3.0}
    }
    assert all(found[f"{part} on"]["versions"] for part in on_gpu.PARTS)


def test_a_part_that_is_measured_again_replaces_its_rows_and_no_others(model, monkeypatch, tmp_path):
    (tmp_path / "gpu.json").write_text('{"ladder": {"old": {}}, "serving": {"kept": []}, "by hand": {}}')
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(on_gpu, "RESULTS", tmp_path)
    monkeypatch.setitem(on_gpu.PARTS, "ladder", lambda lm: [("one", {}), ("two", {})])
    assert on_gpu.main(["ladder"]) == 0
    found = json.loads((tmp_path / "gpu.json").read_text())
    assert set(found["ladder"]) == {"one", "two"} and set(found["serving"]) == {"kept"} and "by hand" in found
    assert not (tmp_path / "gpu.part").exists()


def test_times_are_of_the_eager_and_the_compiled_step(model, monkeypatch):
    monkeypatch.setattr(on_gpu, "timed", lambda call, *how, **more: call() or Samples((0.002,)))
    monkeypatch.setattr(on_gpu, "CompiledTarget", lambda decoder, *more: model)
    found = on_gpu.times(model, 1e9)
    assert found["eager"] == found["compiled"] == 2.0
    assert found["limit"] == pytest.approx(1e-6 * on_gpu.bytes_read(model.decoder))
