"""The compiled step of the engine: the same tokens, one graph for all lengths, deaf to what other sequences left."""

from types import SimpleNamespace

import pytest
import torch
from support.serving import TARGET, together
from support.targets import decoder_target

from lessons_lib.caches.cache import CacheFullError
from lessons_lib.caches.paged import PagedCache, Pages
from lessons_lib.decoding.draft_tree import ModelInput, plain_input
from lessons_lib.models import tiny
from lessons_lib.models.decoder import attend
from lessons_lib.quantization import quantize_model
from lessons_lib.serving import paged_target
from lessons_lib.serving.block_pool import BlockPool
from lessons_lib.serving.engine import Engine
from lessons_lib.serving.paged_target import CompiledPagedTarget, PagedTarget, attend_pages, attend_pages_by_sums
from lessons_lib.serving.scheduler import Scheduler, Static

BLOCKS, SIZE = 60, 4


@pytest.fixture(scope="module")
def target(cold_compiler):
    """Compiled in float64 for three rows; every block that somebody may own holds NaN at first."""
    made = CompiledPagedTarget(TARGET.decoder, max_num_seqs=3, num_blocks=BLOCKS, block_size=SIZE)
    spoil(made)
    together(scheduler(), target=made)
    return made


def scheduler(**settings) -> Scheduler:
    return Scheduler(BlockPool(BLOCKS, SIZE), **{"max_num_seqs": 3} | settings)


def spoil(target: PagedTarget) -> None:
    for buffer in target.memory.keys + target.memory.values:
        buffer[:-1] = float("nan")


def calls(target, monkeypatch) -> list[int]:
    """The tokens that each compiled pass from now on is given."""
    found, run = [], target._run
    count = lambda blocks: sum(len(block.tokens) for block in blocks)  # noqa: E731
    monkeypatch.setattr(target, "_run", lambda blocks: found.append(count(blocks)) or run(blocks))
    return found


@pytest.mark.parametrize("setting", [
    dict(), dict(max_num_seqs=1), dict(max_num_seqs=8), dict(num_speculative_tokens=4), dict(mixed=False),
    dict(max_num_batched_tokens=7, enable_chunked_prefill=True),
], ids=str)  # fmt: skip
def test_every_request_is_answered_as_if_it_ran_alone_and_nothing_compiles_again(target, setting, monkeypatch):
    spoil(target)
    tokens = calls(target, monkeypatch)
    monkeypatch.setattr(PagedTarget, "run", only_trees(PagedTarget.run))
    with torch.compiler.set_stance("fail_on_recompile"):
        _, log = together(scheduler(**setting), target=target)
    assert target.problem is None and target.step.seconds is not None
    monkeypatch.undo()
    _, eager = together(scheduler(**setting))
    assert [i.shares for i in log.iterations] == [i.shares for i in eager.iterations]  # nothing is fed twice
    assert len(set(tokens)) > 2 and sum(tokens) >= sum(s.fed for i in log.iterations for s in i.shares if s.prefill)


def only_trees(run):
    """PagedTarget.run, which nothing comes to that could be compiled rows."""

    def checked(target, blocks):
        assert all(block.mask is not None for block in blocks)
        return run(target, blocks)

    return checked


def test_sizes_that_are_equal_when_the_step_is_compiled_may_differ_later(cold_compiler):
    """With two slots: two rows, two wanted, two blocks."""
    made = CompiledPagedTarget(TARGET.decoder, max_num_seqs=2, num_blocks=BLOCKS, block_size=SIZE)
    together(scheduler(), target=made)


@pytest.mark.parametrize("most", [0, 40])
def test_prompts_beside_decoding_rows_and_prompts_left_to_the_library_change_no_answer(target, most, monkeypatch):
    """Every pass as short as it can be; and texts of 7 tokens are long."""
    monkeypatch.setattr(paged_target, "WASTE", most)
    monkeypatch.setattr(paged_target, "LONG", 40)
    tokens = calls(target, monkeypatch)
    together(scheduler(), target=target)
    assert min(tokens) == 1


def test_a_static_batch_pays_for_held_rows_when_compiled_as_well(target, monkeypatch):
    engine = Engine(target, scheduler(policy=Static()), padded=True)
    tokens = calls(target, monkeypatch)
    engine.serve([engine.request([5, 80, 3], max_new_tokens=count) for count in (1, 2, 6)])
    assert tokens == [9, 3, 3, 3, 3, 3]


@pytest.mark.parametrize("weights", [None, "W4A8"])
def test_single_precision_computes_what_the_eager_step_does_for_any_number_of_rows(weights, cold_compiler):
    decoder = decoder_target(tiny(dtype=torch.float32)).decoder
    decoder = quantize_model(decoder, weights) if weights else decoder
    made = CompiledPagedTarget(decoder, max_num_seqs=4, num_blocks=BLOCKS, block_size=SIZE)
    eager = PagedTarget(decoder, num_blocks=BLOCKS, block_size=SIZE)
    eager.memory = made.memory
    for cached, count in [(0, 1), (0, 2), (5, 4), (0, 33), (20, 17), (3, 64), (30, 1)]:
        generator = torch.Generator().manual_seed(count)
        ids = torch.randint(0, 97, (cached + count,), generator=generator).tolist()
        found = []
        for target in (eager, made):
            cache = PagedCache(target.memory, list(range(20)))
            rest = [] if not cached else PagedTarget.run(target, [plain_input(ids[:cached], cache)])
            found.append(target.run([plain_input(ids[cached:], cache, wanted=count)])[0].logits)
            assert len(rest) <= 1 and cache.length() == cached + count
        torch.testing.assert_close(found[1], found[0], atol=1e-4, rtol=1e-4)


def test_a_step_that_does_not_compile_says_so_once_and_prompts_run_as_without_it(monkeypatch, capsys):
    monkeypatch.delenv("LESSONS_LIB_BATCH", raising=False)
    made = CompiledPagedTarget(TARGET.decoder, max_num_seqs=3, num_blocks=BLOCKS, block_size=SIZE)
    fail = lambda *args: setattr(made.step, "problem", "no luck")  # noqa: E731
    monkeypatch.setattr(made.step, "_first", lambda *args: fail() or torch.zeros(3, 97))
    together(scheduler(), target=made)
    assert capsys.readouterr().err == "no luck; decoding runs uncompiled\n"


def test_a_row_without_room_is_refused_before_anything_is_written(target):
    full = PagedCache(target.memory, [3], SIZE)
    before = [buffer.clone() for buffer in target.memory.keys]
    with pytest.raises(CacheFullError, match="cannot hold 5 entries"):
        target.run([plain_input([1], full)])
    assert all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(before, target.memory.keys, strict=True))


@pytest.mark.parametrize("tokens, cached, block, wrong", [
    ([TARGET.vocab_size], 0, 0, f"tokens 0 to {TARGET.vocab_size} are"), ([3, -1], 0, 0, "tokens -1 to 3"),
    ([1], TARGET.context, 0, f"positions 0 to {TARGET.context} are"), ([1], 0, BLOCKS + 1, f"to {BLOCKS + 1} are not"),
    ([1], 0, -1, "blocks -1 to"),
])  # fmt: skip
def test_a_number_that_is_none_is_refused_since_the_step_itself_does_not_look(target, tokens, cached, block, wrong):
    cache = PagedCache(target.memory, [block] * TARGET.context, cached)
    before = [buffer.clone() for buffer in target.memory.keys]
    with pytest.raises(IndexError, match=wrong):
        target.run([plain_input(tokens, cache)])
    assert cache.length() == cached
    assert all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(before, target.memory.keys, strict=True))


def block(count: int, cached: int = 0, **more) -> ModelInput:
    return ModelInput([1] * count, list(range(count)), None, SimpleNamespace(length=lambda: cached), 1, **more)


def test_a_prompt_too_long_to_be_rows_is_left_to_the_library_and_one_token_never():
    assert paged_target.is_rows(block(128)) and not paged_target.is_rows(block(129))
    assert paged_target.is_rows(block(8, 2000)) and not paged_target.is_rows(block(9, 2000))
    assert paged_target.is_rows(block(1, 10**6)) and not paged_target.is_rows(block(1, after=(3,)))


@pytest.mark.parametrize("blocks, parts", [
    ([], []),
    ([(1, 300)] * 4 + [(60, 0)], [[4], [0, 1, 2, 3]]),  # 60 rows would read 240 entries more each
    ([(1, 120)] * 4 + [(60, 0)], [[4, 0, 1, 2, 3]]),
    ([(1, 2000), (1, 10_000)], [[0, 1]]),
    ([(1, 1000), (1, 10_000)], [[0], [1]]),
    ([(90, 0), (80, 0), (100, 0)], [[1, 0, 2]]),
], ids=str)  # fmt: skip
def test_blocks_run_together_while_padding_costs_less_than_another_pass(blocks, parts):
    assert list(paged_target.passes([block(*sizes) for sizes in blocks])) == parts


def test_preempted_requests_are_answered_as_if_they_ran_alone(target):
    short_of_blocks = dict(kinds=["plain"], lengths=[70, 75, 80, 72, 66, 71, 68, 79])  # four of them need 76 or more
    requests, _ = together(scheduler(max_num_seqs=4, watermark=0.0), **short_of_blocks, target=target)
    assert sum(request.preemptions for request in requests) > 0


def test_without_a_compiler_the_engine_goes_on_uncompiled_and_says_so_once(monkeypatch, capsys):
    monkeypatch.setattr(paged_target, "compiler_problem", lambda device: "there is no C++ compiler")
    monkeypatch.delenv("LESSONS_LIB_BATCH", raising=False)
    made = CompiledPagedTarget(TARGET.decoder, max_num_seqs=3, num_blocks=BLOCKS, block_size=SIZE)
    together(scheduler(), target=made)
    assert capsys.readouterr().err == "there is no C++ compiler; decoding runs uncompiled\n"
    assert made.step.seconds is None


def test_attention_through_block_tables_is_attention_over_each_rows_own_entries():
    target = PagedTarget(decoder_target(tiny()).decoder, num_blocks=12, block_size=4)
    spoil(target)
    caches, c = [target.new_cache(0) for _ in range(2)], target.decoder.config
    caches[0].blocks, caches[1].blocks = [7, 2, 9], [0]
    generator = torch.Generator().manual_seed(0)
    random = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)  # noqa: E731
    lengths, held = (9, 2), []
    for cache, length in zip(caches, lengths, strict=True):
        held.append(random(2, c.num_kv_heads, length, c.head_dim))
        cache.append(0, *held[-1])
    q, new = random(c.num_heads, 2, c.head_dim), random(2, c.num_kv_heads, 2, c.head_dim)
    wanted = [
        attend(q[:, row : row + 1], *torch.cat([held[row], new[:, :, row : row + 1]], 2), None) for row in range(2)
    ]
    tables = torch.tensor(target.memory.padded([[7, 2, 9], [0]]))
    pages = Pages(target.memory.keys, target.memory.values, torch.tensor(lengths), tables)
    keys, values = pages.append(0, *new)
    for of in (attend_pages, attend_pages_by_sums):
        found = of(q, keys, values, pages.visible())
        torch.testing.assert_close(found, torch.cat(wanted, 1), atol=1e-12, rtol=0)
