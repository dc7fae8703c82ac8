"""The claims of lesson 05 with a tiny model: every one is measured as it says, though its numbers mean nothing."""

from types import SimpleNamespace

import pytest
import torch
from support.benches import Letters

from bench.common import CLAIMS, Run
from lessons_lib.decoding.sequence import Sequence
from lessons_lib.models import LanguageModel, tiny
from lessons_lib.serving import paged_target
from lessons_lib.serving.workload import Fixed, Workload


@pytest.fixture(scope="module")
def serving():
    """bench/serving.py on a tiny model, nothing compiled, few requests."""
    with pytest.MonkeyPatch.context() as patch:
        from bench import serving

        patch.setattr(paged_target, "compiler_problem", lambda device: "not compiled in this test")
        patch.setattr(serving, "CompiledStep", lambda step, *how, **chosen: step)
        patch.setattr(serving, "COUNT", 6)
        patch.setattr(serving, "SLOTS", 4)
        words = Letters()
        words.vocab_size = 97
        of = LanguageModel(tiny(context=2048, dtype=torch.float32), words, "tiny", "cpu", torch.float32)
        patch.setattr(serving, "model", lambda: of)
        serving.target.cache_clear(), serving.trace_runs.cache_clear()
        yield serving
        serving.target.cache_clear(), serving.trace_runs.cache_clear()


def measured(serving, name):
    return CLAIMS[name].measure(Run(quick=True))


@pytest.mark.parametrize("name", [
    "serving/continuous-vs-static", "serving/vs-sequential", "serving/vs-generate-batch", "serving/overhead",
    "simulator/throughput-error", "simulator/latency-error", "simulator/requests-per-second",
])  # fmt: skip
def test_a_claim_is_measured_and_says_in_which_number_format(serving, name):
    found = measured(serving, name)
    assert found.ratio.value > -1 and found.ratio.low <= found.ratio.value <= found.ratio.high
    assert "fp32" in found.note or "requests" in found.note


def test_an_error_of_the_simulator_is_the_median_over_runs_of_the_worst_figure(serving, monkeypatch):
    monkeypatch.setattr(serving, "trace_runs", lambda run: [(1.0, 1.1), (2.0, 3.0), (4.0, 4.4)])
    found = serving.simulated_error(Run(True), lambda log: {"a": log, "b": 10.0})
    assert found.ratio.value == pytest.approx(0.1) and (found.ratio.low, found.ratio.high) == pytest.approx((0.1, 0.5))


def test_what_bare_passes_take_between_the_engines_own_is_not_the_engines(serving, monkeypatch):
    clock, run = SimpleNamespace(seconds=0.0), serving.target().run

    def take(seconds, done=None):
        clock.seconds += seconds
        return done

    monkeypatch.setattr(serving.Beside, "now", lambda engine: clock.seconds)
    monkeypatch.setattr(serving.target(), "run", lambda blocks: take(1.0, run(blocks)))
    asked = Workload(4, Fixed(5), Fixed(6), vocab_size=97).requests()
    found = serving.run_beside(lambda: take(3.0), asked)
    assert found == [(1.0, 3.0)] * 5


def test_buffers_in_one_piece_hold_what_blocks_hold(serving):
    """The bare step gives the logits of the engine's step, so that both do the same work."""
    decoder = serving.model().target().decoder
    c, made = decoder.config, torch.Generator().manual_seed(0)
    pieces = [torch.randn(2, c.num_kv_heads, 8, c.head_dim, generator=made) for _ in range(2 * c.num_layers)]
    blocks = [piece.view(2, c.num_kv_heads, 2, 4, -1).transpose(1, 2).flatten(0, 1).contiguous() for piece in pieces]
    tokens, positions, tables = torch.tensor([5, 9]), torch.tensor([6, 2]), torch.tensor([[0, 1], [2, 3]])
    wanted = torch.tensor([1, 0])
    both = [
        paged_target.paged_step(decoder, cache)(
            tokens, positions, tables, wanted, held[: c.num_layers], held[c.num_layers :]
        )
        for cache, held in ((paged_target.Pages, blocks), (serving.InOnePiece, pieces))
    ]
    torch.testing.assert_close(*both)


def test_who_drops_a_request_is_not_fast(serving):
    lost = Sequence("a", ids=[5, 6], output_length=3)
    with pytest.raises(RuntimeError, match="Request a got 0 of 3 tokens"):
        serving.all_served([lost])
