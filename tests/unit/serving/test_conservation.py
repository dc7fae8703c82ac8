"""Whatever the settings: no token, block, slot or request is lost, and nobody waits for ever."""

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st
from support.examples import examples

from lessons_lib.decoding.sequence import Sequence, Status
from lessons_lib.measure.cost import LinearCost
from lessons_lib.serving.block_pool import BlockPool
from lessons_lib.serving.loop import serve
from lessons_lib.serving.scheduler import Continuous, Dynamic, Scheduler, Static
from lessons_lib.serving.simulator import Simulator

LONGEST, BLOCK = 24, 4  # tokens of the longest prompt and output together; just fits the smallest pool
COST = LinearCost(step=1.0, prefill_token=0.1)
POLICIES = [Continuous, Static, lambda: Static(steps=7), lambda: Dynamic(window=2.0)]


@dataclass
class Checked(Simulator):
    """A simulator that checks every plan before it runs."""

    scheduler: Scheduler | None = None
    fed: dict = field(default_factory=dict)

    def run(self, plan):
        scheduler, rows = self.scheduler, plan.rows
        assert len({row.seq for row in rows}) == len(rows)
        assert len(scheduler.running) + len(scheduler.held) <= scheduler.max_num_seqs
        assert all(1 <= r.tokens <= r.seq.num_uncomputed_tokens + scheduler.num_speculative_tokens for r in rows)
        budget = scheduler.max_num_batched_tokens
        assert budget is None or sum(r.tokens for r in rows) <= budget
        self.check_blocks(rows)
        for row in rows:
            self.fed[row.seq] = self.fed.get(row.seq, 0) + row.tokens
        before = self.time
        tokens = super().run(plan)
        assert self.time > before
        return tokens

    def check_blocks(self, rows):
        """free + used = pool, and every token that is cached or about to be owns room."""
        pool, requests = self.scheduler.pool, [*self.scheduler.running, *self.scheduler.held]
        used = {block for request in requests for block in request.block_table}
        assert pool.free_blocks + len(used) == pool.num_blocks
        assert all(len(r.seq.block_table) * BLOCK >= r.seq.num_computed_tokens + r.tokens for r in rows)


@st.composite
def cases(draw):
    """(requests, scheduler), small enough for collisions: few slots, few blocks, equal arrivals."""
    ids = draw(st.booleans())
    requests = []
    for i in range(draw(st.integers(1, 9))):
        prompt, output = draw(st.integers(1, LONGEST - 8)), draw(st.integers(1, 8))
        arrival = float(draw(st.integers(0, 6)))
        limit = draw(st.sampled_from([None, 8]))
        requests.append(Sequence(i, arrival, prompt, output, limit, [k % 3 for k in range(prompt)] if ids else None))
    slots, draft_tokens = draw(st.integers(1, 4)), draw(st.sampled_from([0, 0, 2]))
    blocks = draw(st.integers(-(-(LONGEST + draft_tokens) // BLOCK), 20))
    pool = BlockPool(blocks, BLOCK)
    budget, chunked, mixed = draw(st.sampled_from([
        (None, False, True), (None, False, False), (LONGEST, False, True), (12, True, True),
    ]))  # fmt: skip
    reserve, policy = draw(st.sampled_from(["none", "none", "max", "oracle"])), draw(st.sampled_from(POLICIES))()
    watermark = draw(st.sampled_from([0, 0.01, 0.2]))
    return requests, Scheduler(pool, slots, policy, budget, chunked, mixed, reserve, watermark, draft_tokens)


@examples(300)
@given(cases(), st.integers(0, 2))
def test_tokens_blocks_and_slots_are_conserved(case, right):
    requests, scheduler = case
    backend = Checked(COST, accepted=lambda request, draft_tokens: min(right, draft_tokens), scheduler=scheduler)
    log = serve(requests, scheduler, backend)
    assert all(request.status is Status.FINISHED for request in log.requests)
    assert all(len(r.times) == r.num_output_tokens == r.output_length for r in log.requests)
    assert sum(s.emitted for i in log.iterations for s in i.shares) == sum(r.output_length for r in log.requests)
    assert scheduler.unfinished == 0 and scheduler.pool.free_blocks == scheduler.pool.num_blocks
    assert scheduler.reserve == "none" or not any(r.preemptions for r in log.requests)
    calm = [r for r in log.requests if not r.preemptions and not scheduler.num_speculative_tokens]
    assert all(backend.fed[r] + r.reused == r.prompt_length + r.output_length - 1 for r in calm)
    assert all(i.end > i.start for i in log.iterations)
    assert all(a.end <= b.start for a, b in zip(log.iterations, log.iterations[1:], strict=False))


@examples(200)
@given(cases())
def test_first_come_first_served_starves_nobody(case):
    requests, scheduler = case
    scheduler.policy = Continuous()
    log = serve(requests, scheduler, Simulator(COST))
    by_arrival = sorted(log.requests, key=lambda r: r.arrival)  # stable: by id among equals
    admitted = [request.admitted for request in by_arrival]
    assert admitted == sorted(admitted)
