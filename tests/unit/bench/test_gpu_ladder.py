"""The ladder on a GPU: all but the recording itself, which a stand-in replays by running the step anew."""

import pytest
import torch
from support.graphs import graphs_on_cpu
from support.targets import decoder_target

from bench import gpu_ladder
from lessons_lib.models import tiny

PROMPTS = [[5, 6, 7, 8], [9, 5, 9, 5, 9]]


@pytest.fixture
def recordings(monkeypatch):
    """Compiled steps run as they are, and graphs are stood in for on a CPU."""
    monkeypatch.setattr(
        "lessons_lib.decoding.targets.compiled.CompiledStep", lambda step, name, **how: Step(torch.no_grad()(step))
    )
    with graphs_on_cpu(problem=None) as captured:
        yield captured


class Step:
    """A compiled step that runs as it is."""

    problem = None

    def __init__(self, step):
        self.step = step

    def __call__(self, *args):
        return self.step(*args)


@pytest.fixture
def on_cpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(gpu_ladder, "prompts", lambda lm, categories, count: PROMPTS)


def fails(*ids):
    raise RuntimeError("no kernel")


@pytest.mark.parametrize("make", [lambda: fails, fails], ids=["writing", "making"])
def test_a_rung_that_fails_is_left_out_and_says_why(make, on_cpu, monkeypatch, capsys):
    monkeypatch.setattr(gpu_ladder, "rungs", lambda lm: [("one", make), ("two", lambda: lambda ids: [1] * 8)])
    (found,) = gpu_ladder.ladder(None)
    assert found[0] == "two" and set(found[1]) == set(gpu_ladder.ASKED) and min(found[1].values()) > 0
    assert "one: RuntimeError: no kernel" in capsys.readouterr().out


def test_where_nothing_compiles_no_rung_is_called_a_graph(monkeypatch):
    monkeypatch.setattr("lessons_lib.decoding.targets.compiled.compiler_problem", lambda device: "no compiler")
    eager = decoder_target(tiny())
    with pytest.raises(RuntimeError, match="no compiler"):
        gpu_ladder.record(eager.decoder, eager, (1,))


def test_a_step_that_fails_to_compile_fails_its_rung(recordings, monkeypatch):
    step = lambda step, name, **how: Broken(step)  # noqa: E731
    monkeypatch.setattr("lessons_lib.decoding.targets.compiled.CompiledStep", step)
    eager = decoder_target(tiny())
    write = gpu_ladder.writer(lambda: gpu_ladder.record(eager.decoder, eager, (1,)), gpu_ladder.Proposer)
    with pytest.raises(RuntimeError, match="failed halfway"):
        write([5, 6])


class Broken:
    """A compiled step that runs uncompiled."""

    problem = "failed halfway"

    def __init__(self, step):
        self.step = torch.no_grad()(step)

    def __call__(self, *args):
        return self.step(*args)


def test_every_rung_writes_and_is_named_by_what_it_stacks(recordings, on_cpu, monkeypatch):
    eager = decoder_target(tiny(dtype=torch.float32))
    lm = type("Model", (), {"target": lambda self, **how: eager, "network": None, "device": "cpu", "dtype": None})()
    monkeypatch.setattr(gpu_ladder, "by_transformers", lambda network, ids, new: [1] * new)
    monkeypatch.setattr(gpu_ladder, "load", lambda *names, **options: lm)
    monkeypatch.setattr(gpu_ladder, "load_heads", fails)  # of another model
    monkeypatch.setattr(gpu_ladder, "TOKENS", 6)
    found = dict(gpu_ladder.ladder(lm))
    targets = ["decoder", *(f"graph {name}".strip() for name in ("", *gpu_ladder.ROUNDED))]
    assert list(found) == ["generate", *(name + who for name in targets for who in ("", " + lookup", " + draft"))]
