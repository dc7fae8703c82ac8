"""A prefix is found only in the memory that holds it, however schedulers, engines and simulators share each other."""

import pytest
from support.serving import PREFIX, PROMPTS, TARGET, alone

from lessons_lib.decoding.sequence import Sequence, Status
from lessons_lib.measure.cost import LinearCost
from lessons_lib.serving.block_pool import BlockPool
from lessons_lib.serving.engine import Engine, paged
from lessons_lib.serving.scheduler import Scheduler
from lessons_lib.serving.simulator import simulate


def served(engine, prompt=PREFIX):
    engine.serve([request := engine.request(prompt, max_new_tokens=9)])
    assert engine.output(request).ids == alone("plain", prompt, 9)
    return request


def test_engines_that_share_a_scheduler_do_not_find_each_others_prefixes():
    scheduler = Scheduler(BlockPool(40, 4))
    first, second = Engine(TARGET, scheduler), Engine(TARGET, scheduler)
    assert [served(engine).reused for engine in (second, first, first, second)] == [0, 0, 8, 0]


def test_an_engine_does_not_find_the_prefixes_of_a_simulation_on_its_scheduler():
    engine = Engine(TARGET, scheduler := Scheduler(BlockPool(40, 4)))
    assert served(engine).reused == 0 and served(engine).reused == 8
    simulate([Sequence(0, ids=list(PREFIX), output_length=9)], scheduler, LinearCost(step=1.0))
    assert served(engine).reused == 0


def test_a_pool_does_not_find_what_another_pool_wrote_over():
    shared = paged(TARGET, BlockPool(12, 4))
    first, second = (Engine(shared, Scheduler(BlockPool(12, 4))) for _ in range(2))
    assert [served(first).reused, served(second, PROMPTS[6]).reused, served(first).reused] == [0, 0, 0]
    assert served(first).reused == 8


def test_engines_that_share_a_target_and_a_scheduler_find_the_same_prefixes():
    scheduler = Scheduler(BlockPool(40, 4))
    shared = paged(TARGET, scheduler.pool)
    assert [served(Engine(shared, scheduler)).reused for _ in range(2)] == [0, 8]


def test_an_engine_whose_blocks_were_used_meanwhile_refuses_to_run():
    scheduler = Scheduler(BlockPool(40, 4))
    first, second = Engine(TARGET, scheduler), Engine(TARGET, scheduler)
    scheduler.add(first.request(PREFIX))
    with pytest.raises(RuntimeError, match="another run has used this engine's blocks; give each engine its own pool"):
        first.run(scheduler.schedule(0.0))
    with pytest.raises(ValueError, match="requests own 3 blocks of this pool"):
        second.pool.attach(first.memory)


def test_a_second_run_on_a_scheduler_is_refused_and_the_first_goes_on():
    scheduler, refused = Scheduler(BlockPool(40, 4)), []
    first, second = Engine(TARGET, scheduler), Engine(TARGET, scheduler)

    def run_another(_):
        for engine in (first, second):
            with pytest.raises(RuntimeError, match="this scheduler serves another run") as raised:
                engine.serve([engine.request(PREFIX)])
            refused.append(raised)
        with pytest.raises(RuntimeError, match="this scheduler serves another run"):
            simulate([Sequence(0, prompt_length=4)], scheduler, LinearCost(step=1.0))

    first.serve([request := first.request(PREFIX, max_new_tokens=9, on_tokens=run_another)])
    assert len(refused) == 18 and first.output(request).ids == alone("plain", PREFIX, 9)
    assert served(second).reused == 0


def test_a_run_that_begins_while_another_takes_in_its_requests_is_refused(monkeypatch):
    scheduler, refused = Scheduler(BlockPool(40, 4)), []
    first, second = Engine(TARGET, scheduler), Engine(TARGET, scheduler)
    adopt, late = first._adopt, second.request(PREFIX, max_new_tokens=2)

    def adopt_while_another_begins(request):
        with pytest.raises(RuntimeError, match="this scheduler serves another run") as raised:
            second.serve([late])
        refused.append(raised)
        return adopt(request)

    monkeypatch.setattr(first, "_adopt", adopt_while_another_begins)
    first.serve([one := Sequence("a", ids=list(PREFIX), output_length=9)])
    assert len(refused) == 1 and first.output(one).ids == alone("plain", PREFIX, 9)
    second.serve([late])
    assert late.status is Status.FINISHED


def test_a_simulation_that_breaks_off_lets_the_next_run_begin():
    scheduler = Scheduler(BlockPool(40), num_speculative_tokens=1)
    with pytest.raises(ZeroDivisionError):
        simulate([Sequence(0, prompt_length=4, output_length=3)], scheduler, LinearCost(1.0), lambda request, n: 1 // 0)
    assert not scheduler.serving
