"""The compiled step of the engine: the same tokens, one graph for all lengths, deaf to what other sequences left."""

from types import SimpleNamespace

import pytest
import torch
from support.serving import TARGET, alone, together
from support.targets import decoder_target

from lessons_lib.caches.paged import PagedRows
from lessons_lib.decoding.blocks import Block
from lessons_lib.models import tiny
from lessons_lib.serving import compiled
from lessons_lib.serving.block_pool import BlockPool
from lessons_lib.serving.compiled import CompiledPagedTarget, attend_pages
from lessons_lib.serving.engine import Engine, paged
from lessons_lib.serving.scheduler import Scheduler
from lessons_lib.serving.target import PagedTarget, attend_rows

BLOCKS, SIZE = 60, 4


@pytest.fixture(scope="module")
def target(cold_compiler):
    """Compiled in float64 for three rows; every block that somebody may own holds NaN at first."""
    made = CompiledPagedTarget(TARGET.decoder, slots=3, num_blocks=BLOCKS, block_size=SIZE)
    spoil(made)
    together(scheduler(), target=made)
    return made


def scheduler(**settings) -> Scheduler:
    return Scheduler(BlockPool(BLOCKS, SIZE), **{"slots": 3} | settings)


def spoil(target: PagedTarget) -> None:
    for buffer in target.memory.keys + target.memory.values:
        buffer[:-1] = float("nan")


def calls(target, monkeypatch) -> list[int]:
    """The tokens that each compiled forward from now on is given."""
    found, run = [], target._run
    count = lambda blocks: sum(len(block.tokens) for block in blocks)  # noqa: E731
    monkeypatch.setattr(target, "_run", lambda blocks: found.append(count(blocks)) or run(blocks))
    return found


@pytest.mark.parametrize("setting", [
    dict(), dict(slots=1), dict(slots=8), dict(guesses=4), dict(mixed=False), dict(token_budget=7, chunked=True),
], ids=str)  # fmt: skip
def test_every_request_is_answered_as_if_it_ran_alone_and_nothing_compiles_again(target, setting, monkeypatch):
    spoil(target)
    tokens = calls(target, monkeypatch)
    monkeypatch.setattr(PagedTarget, "run", only_trees(PagedTarget.run))
    with torch.compiler.set_stance("fail_on_recompile"):
        _, log = together(scheduler(**setting), target=target)
    assert target.problem is None and target.step.seconds is not None
    assert len(set(tokens)) > 2 and sum(tokens) >= sum(s.fed for i in log.iterations for s in i.shares if s.prefill)


def only_trees(run):
    """PagedTarget.run, which nothing comes to that could be compiled rows."""

    def checked(target, blocks):
        assert all(block.mask is not None for block in blocks)
        return run(target, blocks)

    return checked


def test_sizes_that_are_equal_when_the_step_is_compiled_may_differ_later(cold_compiler):
    """As after a reset of the compiler, which compiles for whatever comes then: two rows, two wanted, two blocks."""
    made = CompiledPagedTarget(TARGET.decoder, slots=2, num_blocks=BLOCKS, block_size=SIZE)
    made._call([([0, 0], [0, 0], [], 2)])
    together(scheduler(), target=made)


def block(count: int, cached: int = 0, **more) -> Block:
    return Block([1] * count, list(range(count)), None, SimpleNamespace(length=lambda: cached), 1, **more)


def test_a_prompt_too_long_to_be_rows_is_left_to_the_library_and_one_token_never():
    assert compiled.is_rows(block(128)) and not compiled.is_rows(block(129))
    assert compiled.is_rows(block(8, 2000)) and not compiled.is_rows(block(9, 2000))
    assert compiled.is_rows(block(1, 10**6)) and not compiled.is_rows(block(1, after=(3,)))


@pytest.mark.parametrize("blocks, parts", [
    ([], []),
    ([(1, 300)] * 4 + [(60, 0)], [[4], [0, 1, 2, 3]]),  # 60 rows would read 240 entries more each
    ([(1, 120)] * 4 + [(60, 0)], [[4, 0, 1, 2, 3]]),
    ([(1, 2000), (1, 10_000)], [[0, 1]]),
    ([(1, 1000), (1, 10_000)], [[0], [1]]),
    ([(90, 0), (80, 0), (100, 0)], [[1, 0, 2]]),
], ids=str)  # fmt: skip
def test_blocks_run_together_while_padding_costs_less_than_another_forward(blocks, parts):
    assert list(compiled.forwards([block(*sizes) for sizes in blocks])) == parts


def test_a_text_longer_than_any_before_takes_the_same_graph(target):
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    engine = Engine(target, scheduler())
    engine.serve([one := engine.request([5, 80, 3], max_new_tokens=90)])
    assert engine.output(one).ids == alone("plain", [5, 80, 3], 90)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs


def test_preempted_requests_are_answered_as_if_they_ran_alone(target):
    short_of_blocks = dict(kinds=["plain"], lengths=[70, 75, 80, 72, 66, 71, 68, 79])  # four of them need 76 or more
    requests, _ = together(scheduler(slots=4, watermark=0.0), **short_of_blocks, target=target)
    assert sum(request.preemptions for request in requests) > 0


def test_an_engine_is_compiled_where_its_target_is():
    made = scheduler(slots=5)
    compiled = paged(TARGET, made.pool, made.slots)
    assert isinstance(compiled, CompiledPagedTarget) and compiled.slots == 5
    assert Engine(compiled, made).target is compiled
    assert type(Engine(TARGET, scheduler()).target) is PagedTarget


def test_without_a_compiler_the_engine_goes_on_uncompiled_and_says_so_once(monkeypatch, capsys):
    monkeypatch.setattr(compiled, "compiler_problem", lambda device: "there is no C++ compiler")
    monkeypatch.delenv("LESSONS_LIB_BATCH", raising=False)
    made = CompiledPagedTarget(TARGET.decoder, slots=3, num_blocks=BLOCKS, block_size=SIZE)
    together(scheduler(), target=made)
    assert capsys.readouterr().err == "there is no C++ compiler; decoding runs uncompiled\n"
    assert made.step.seconds is None


def test_no_slots_are_refused():
    with pytest.raises(ValueError, match="slots=0: a step needs at least one row"):
        CompiledPagedTarget(TARGET.decoder, slots=0, num_blocks=4, block_size=4)


def test_attention_through_the_lists_of_blocks_is_attention_over_collected_rows():
    target = PagedTarget(decoder_target(tiny()).decoder, num_blocks=12, block_size=4)
    spoil(target)
    caches, c = [target.new_cache(0) for _ in range(2)], target.decoder.config
    caches[0].blocks, caches[1].blocks = [7, 2, 9], [0]
    generator = torch.Generator().manual_seed(0)
    random = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)  # noqa: E731
    for cache, length in zip(caches, (9, 2), strict=True):
        cache.append(0, random(c.kv_heads, length, c.head_dim), random(c.kv_heads, length, c.head_dim))
        cache._lengths = [length] * c.layers
    q, new = random(c.heads, 2, c.head_dim), random(2, c.kv_heads, 2, c.head_dim)
    rows = PagedRows(caches)
    wanted = attend_rows(q, *rows.append(0, *new), rows.bias(torch.float64))
    for buffer in (target.memory.keys[0], target.memory.values[0]):
        buffer[9, :, 2:] = float("nan")  # behind the new entry
    tables = torch.tensor(target.memory.padded([[7, 2, 9], [0]]))
    pages = compiled.Pages(target.memory.keys, target.memory.values, torch.tensor([9, 2]), tables)
    seen = torch.arange(12).view(3, 4) <= torch.tensor([9, 2])[:, None, None]
    torch.testing.assert_close(attend_pages(q, *pages.append(0, *new), seen), wanted, atol=1e-12, rtol=0)
