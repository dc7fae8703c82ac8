"""Techniques side by side: what is run in which order, what is counted, and what the table says."""

import json

import numpy as np
import pytest
import torch
from support.kinds import model_of
from support.toys import choosing

from lessons_lib import DraftModel, Lookahead, PromptLookup, compare, comparison, generate
from lessons_lib.advice import EXACT, OTHER
from lessons_lib.caches import Streaming
from lessons_lib.comparison import Comparison, held_by, several
from lessons_lib.decoding import TransformersTarget
from lessons_lib.decoding.generate import Output, StepStats
from lessons_lib.decoding.peers import TransformersGenerate
from lessons_lib.decoding.targets import DecoderTarget, StreamingTarget, Unsupported
from lessons_lib.models import LanguageModel, tiny
from lessons_lib.models.decoder import Decoder

CYCLE = choosing(lambda prefix: (prefix[-1] + 1) % 4, vocab_size=6)  # 0 1 2 3 0 1 2 3 ...
PROMPT = [0, 1, 2, 3, 0]


def engine(seconds: float, per_pass: int = 1, tokens=None):
    """Another engine: its steps take `seconds` each and commit `per_pass` tokens, after a prefill of 100 s."""

    def run(ids, new):
        stats = [StepStats(len(ids), len(ids), committed=1, is_prefill=True, t_total=100.0)]
        stats += [StepStats(0, 1, committed=per_pass, t_total=seconds) for _ in range((new - 1) // per_pass)]
        text = [(ids[-1] + 1 + i) % 4 for i in range(new)]
        return Output(tokens(text) if tokens else text, "", stats, "length")

    return run


def test_every_technique_is_run_and_counted_as_generate_counts():
    made = compare(CYCLE, PROMPT, {"plain": None, "lookup": PromptLookup(num_tokens=3)}, max_new_tokens=9)
    alone = generate(CYCLE, PROMPT, PromptLookup(num_tokens=3), max_new_tokens=9)
    assert made["lookup"].ids == made["plain"].ids == alone.ids == [1, 2, 3, 0, 1, 2, 3, 0, 1]
    plain, lookup = made.rows
    assert (plain.passes, plain.tokens_per_pass) == (8, 1.0)
    assert (lookup.passes, lookup.tokens_per_pass) == (2, 4.0) and lookup.same == (True,)


def test_speed_is_that_of_decoding_and_the_interval_of_one_prompt_that_of_its_repeats():
    """9 tokens after the prefill: 2 s each, then 4 passes of 2 at 2 s each, but 1 s in the second repeat."""
    fast = iter([engine(2.0, 2), engine(2.0, 2), engine(1.0, 2)])  # the first is the untimed run
    techniques = {"plain": engine(2.0), "fast": lambda ids, new: next(fast)(ids, new)}
    plain, row = compare(CYCLE, PROMPT, techniques, max_new_tokens=9, repeats=2).rows
    assert plain.tokens_per_second == pytest.approx(0.5) and plain.speedup is None
    assert row.tokens_per_second == pytest.approx(16 / 12) and row.tokens_per_pass == 2
    assert row.speedup.value == pytest.approx(16 / 12 / 0.5)
    assert (row.speedup.low, row.speedup.high) == pytest.approx((2.0, 4.0))
    # 9 tokens in 100 + 16 s, against those in 100 + 8 and 100 + 4 s
    assert row.whole.value == pytest.approx(2 * 116 / (108 + 104)) and row.cells()[5] == "1.09"


def test_a_text_that_a_draft_finished_in_the_prefill_is_left_out_of_the_speed_of_decoding():
    """Of two prompts the second takes the fast engine its prefill alone; the first 8 tokens at 2 and at 1 s."""

    def fast(ids, new):
        out = engine(1.0)(ids, new)
        if len(ids) == 3:
            out.stats[:] = [StepStats(3, 3, committed=new, is_prefill=True, t_total=100.0)]
        return out

    made = compare(CYCLE, [PROMPT, PROMPT[:3]], {"plain": engine(2.0), "fast": fast}, max_new_tokens=9, repeats=1)
    row = made.rows[1]
    assert row.speedup.value == pytest.approx(2.0) and len(row.speedup.a.times) == 1
    assert row.whole.value == pytest.approx((116 + 116) / (108 + 100)) and len(row.whole.a.times) == 2


def test_the_plot_marks_what_is_recommended(monkeypatch):
    monkeypatch.setattr(comparison, "recommended", lambda rows: rows[1])
    made = compare(CYCLE, PROMPT, {"plain": engine(1.0), "fast": engine(0.5)}, max_new_tokens=5, repeats=2)
    (ax,) = made.plot().axes
    assert [label.get_text() for label in ax.get_yticklabels()] == ["fast\n(recommended)", "plain"]


def test_with_several_prompts_the_interval_is_that_of_the_prompts():
    slow_on = {1: 1.0, 2: 0.25}  # seconds of a token by the prompt's length
    techniques = {"plain": engine(1.0), "fast": lambda ids, new: engine(slow_on[len(ids)])(ids, new)}
    made = compare(CYCLE, [[0], [0, 1]], techniques, max_new_tokens=5, repeats=2)
    (_, row), outputs = made.rows, made["fast"]
    assert (row.speedup.low, row.speedup.high) == pytest.approx((1.0, 4.0))
    assert row.speedup.value == pytest.approx(8 / 5) and len(outputs) == 2
    assert made.row("fast", prompts=[1]).speedup.value == pytest.approx(4.0)


def test_techniques_run_in_alternation_after_a_short_untimed_run_each():
    ran = []

    def note(name):
        return lambda ids, new: ran.append(f"{name}{new}") or engine(1.0)(ids, new)

    compare(CYCLE, PROMPT, {name: note(name) for name in "abc"}, max_new_tokens=20, repeats=2)
    assert ran == ["a8", "b8", "c8", "a20", "b20", "c20", "c20", "b20", "a20"]


def test_other_tokens_are_shown_with_their_place_and_logit_gap():
    logits = torch.tensor([[0.0, 3.0, 2.5], [0.0, 1.0, 5.0], [4.0, 1.0, 0.0]], dtype=torch.float64)
    target = choosing(lambda prefix: 0, 3)
    target.logits = lambda prefix: logits[prefix[-1]]  # 0 -> 1 -> 2 -> 0; after 0, token 2 is 0.5 below
    other = engine(1.0, tokens=lambda text: [1, 2, 0, 2, 0, 1])
    made = compare(target, [0], {"plain": None, "other": other}, max_new_tokens=6, repeats=1)
    row = made.rows[1]
    assert row.same == (False,) and (row.divergence.same, row.divergence.margin) == (3, pytest.approx(0.5))
    assert repr(made).endswith("no: token 4, logit gap 0.5") and not row.divergence.near_tie


def test_a_text_that_goes_on_where_plain_decoding_ends_has_other_tokens():
    """There is no logit gap: one text is the beginning of the other."""
    ends, endless = (choosing(lambda prefix: (prefix[-1] + 1) % 4, vocab_size=6, eos=eos) for eos in ((3,), ()))
    plain, other = compare(ends, PROMPT, {"plain": None, "endless": endless}, 9, 1).rows
    assert (plain.role, other.role, other.same, other.divergence) == (EXACT, OTHER, (False,), None)


def test_a_technique_that_cannot_run_says_why_and_the_others_go_on():
    never = raising(Unsupported("this model reads no trees; use chains"))
    made = compare(CYCLE, PROMPT, {"plain": None, "never": never, "lookup": PromptLookup()}, 5, 1)
    assert [row.problem for row in made.rows] == ["", "this model reads no trees; use chains", ""]
    assert "use chains" in repr(made) and "use chains" in made._repr_html_()
    with pytest.raises(KeyError, match="reads no trees"):
        made["never"]
    with pytest.raises(Unsupported):
        compare(CYCLE, PROMPT, {"plain": never}, 5, 1)


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("recurrent", "assisted generation is not supported with stateful models, such as MambaForCausalLM"),
        ("no cache", "transformers raises AttributeError ('CausalLMOutput' object has no attribute"),
    ],
)
def test_a_model_that_transformers_cannot_assist_is_compared_all_the_same(kind, why):
    model = LanguageModel(model_of(kind), None, kind, "cpu", torch.float64)
    theirs, lookup = TransformersGenerate(model), TransformersGenerate(model, prompt_lookup_num_tokens=10)
    techniques = {"plain": None, "lookahead": Lookahead(), "their lookup": lookup, "theirs": theirs}
    plain, lookahead, assisted, theirs = compare(model, PROMPT, techniques, 5, 1).rows
    assert not plain.problem and theirs.same == (True,)
    assert "does not read branches" in lookahead.problem
    assert assisted.problem.startswith(why) and "\n" not in assisted.problem


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 80 bytes"),
        RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 80 bytes."),
        MemoryError(),
    ],
)
def test_a_technique_without_room_in_memory_is_a_row_and_the_others_go_on(error):
    made = compare(CYCLE, PROMPT, {"plain": None, "full": raising(error), "lookup": PromptLookup()}, 5, 1)
    assert [row.problem for row in made.rows] == ["", "out of memory", ""]
    with pytest.raises(type(error)):  # without the first one there is nothing to compare with
        compare(CYCLE, PROMPT, {"plain": raising(error)}, 5, 1)


@pytest.mark.parametrize("error", [RuntimeError("shapes do not match"), AttributeError("no such field")])
def test_a_fault_of_a_technique_is_not_hidden_in_a_row(error):
    with pytest.raises(type(error), match=str(error)):
        compare(CYCLE, PROMPT, {"plain": None, "wrong": raising(error)}, 5, 1)


def raising(error: Exception):
    """An engine that fails with this error."""

    def fail(ids, new):
        raise error

    return fail


def test_an_interrupted_comparison_shows_what_was_measured():
    techniques = {"plain": engine(1.0), "fast": engine(0.5), "late": engine(1.0)}
    made = Comparison(CYCLE, [[0], [0, 1]], techniques, max_new_tokens=5, repeats=1)
    assert made.rows == [] and made.total == 9
    ran = iter(made.runs())
    for _ in range(5):  # three untimed runs, then two timed ones
        next(ran)
    assert [row.name for row in made.rows] == ["plain", "fast"]
    assert made.rows[1].speedup.value == pytest.approx(2.0) and made.rows[1]._speedup() == "2.00"
    next(ran), next(ran)  # the second prompt begins with the last technique, whose run has no counterpart yet
    assert made.rows[2].name == "late" and made.rows[2].passes == 4


@pytest.mark.parametrize(
    ("seconds", "new", "names"),
    [
        (None, 128, ["plain", "fast", "slow"]),
        (2308, 128, ["plain", "fast", "slow"]),  # 3 prefills of 300 s, then 128 tokens of 2 texts at 1 + 0.5 + 4 s
        (2307, 128, ["plain", "fast"]),
        (984, 128, ["plain", "fast"]),  # 2 prefills of 300 s, then 128 tokens of 2 texts at 1 + 0.5 s
        (700, 33, ["plain", "fast"]),
        (10, 16, ["plain", "fast"]),
    ],
)
def test_where_time_is_short_what_is_slow_is_left_out_and_then_texts_get_shorter(seconds, new, names):
    """The prefill of the first prompt, five tokens, takes 100 s, so those of five and ten tokens should take 300 s."""
    techniques = {"plain": engine(1.0), "fast": engine(1.0, 2), "slow": engine(4.0)}
    made = Comparison(CYCLE, [PROMPT, 2 * PROMPT], techniques, max_new_tokens=128, repeats=1)
    assert list(made.runs(seconds)) and made.max_new_tokens == new
    assert [row.name for row in made.rows if not row.problem] == names
    assert {len(out.ids) for out in made.outputs.values()} == {new}
    assert made.unlimited == (0 if seconds is None else 2308)
    if "slow" not in names:
        assert made.rows[2].problem == "left out for time: 0.25 times as fast in a trial of 8 tokens"


def ending(seconds: float):
    """An engine whose text after a prompt of one token ends with its first token."""
    return lambda ids, new: engine(seconds)(ids, 1 if len(ids) == 1 else new)


def test_a_first_text_that_ends_at_once_does_not_lift_the_limit_of_time():
    techniques = {"plain": ending(1.0), "slow": ending(4.0)}
    made = Comparison(CYCLE, [[0], PROMPT], techniques, max_new_tokens=128, repeats=1)
    assert list(made.runs(10.0)) and made.max_new_tokens == 16 and made.rows[1].problem.startswith("left out for time")
    assert made.unlimited == 6 * (20 + 20) + 2 * 128 * (1 + 4)  # a prefill of 20 s per token, as for the second prompt


def test_texts_that_all_end_with_their_first_token_are_no_comparison_and_leave_json():
    ends = lambda ids, new: engine(1.0)(ids, 1)  # noqa: E731
    made = compare(CYCLE, [[0], [1]], {"plain": ends, "other": ends}, max_new_tokens=9, repeats=1)
    assert made.recommendation.startswith("Nothing can be recommended: every text ended with its first token")
    assert json.dumps(made.record(), allow_nan=False)


def test_weights_of_a_draft_and_the_cache_count_as_memory():
    network, draft = tiny(dtype=torch.float32), tiny(layers=1, dtype=torch.float32)
    made = compare(network, [1, 2, 3], {"plain": None, "draft": DraftModel(draft)}, max_new_tokens=5, repeats=1)
    weights = [sum(part.nbytes for part in of.parameters()) for of in (network, draft)]
    cache = 2 * 2 * 8 * 8 * 4  # per layer: keys and values of 2 heads of 8, for 8 tokens, in 4 bytes
    plain, drafted = (row.memory for row in made.rows)
    assert plain == weights[0] + 2 * cache and drafted == plain + weights[1] + cache


def test_a_streaming_cache_counts_with_as_many_tokens_as_it_has_slots():
    plain = DecoderTarget(Decoder.from_transformers(tiny()))
    target = StreamingTarget(plain.decoder, streaming=Streaming(2, 16, chunk=4))
    assert [held_by(target, count) for count in (9, 22, 200)] == [held_by(plain, count) for count in (9, 22, 22)]


def test_a_target_of_its_own_and_one_with_a_proposer():
    network, other = tiny(), tiny(seed=1)
    techniques = {"plain": None, "other": TransformersTarget(other), "both": (other, Lookahead())}
    made = compare(network, [1, 2, 3], techniques, max_new_tokens=12, repeats=1)
    assert made["other"].ids == made["both"].ids == generate(other, [1, 2, 3], max_new_tokens=12).ids
    assert len(made["both"].stats) <= 12 and made.rows[1].same == made.rows[2].same == (False,)


@pytest.mark.parametrize("wrong", [PromptLookup, 3, (None, 3), (CYCLE, PromptLookup, 1)])
def test_what_is_no_technique_is_refused_by_its_name(wrong):
    with pytest.raises(TypeError, match="'odd' must be None, a proposer|cannot decode"):
        compare(CYCLE, PROMPT, {"plain": None, "odd": wrong})


@pytest.mark.parametrize(
    ("prompts", "many"),
    [
        ("text", False), ([1, 2], False), ([{"role": "user", "content": "x"}], False), (torch.tensor([[1, 2]]), False),
        (["a", "b"], True), ([[1, 2], [3]], True), ([[{"role": "user", "content": "x"}]], True),
        ([np.array([1, 2]), np.array([3])], True), ([{"input_ids": [1, 2]}, {"input_ids": [3]}], True),
        (list(np.array([1, 2])), False), ({"input_ids": [1, 2]}, False),
    ],
)  # fmt: skip
def test_one_prompt_or_several(prompts, many):
    assert several(prompts) == many


@pytest.mark.parametrize("options", [{}, {"prompt_lookup_num_tokens": 4}])
def test_transformers_beside_gives_the_same_tokens_and_one_step_per_forward_pass(options):
    network = tiny(vocab_size=8)
    calls = []
    network.register_forward_pre_hook(lambda *given: calls.append(1))
    theirs = TransformersGenerate(LanguageModel(network, None, "tiny", "cpu", torch.float64), **options)
    out = theirs([1, 2, 3, 1, 2], 24)
    assert len(out.stats) == len(calls) and sum(step.committed for step in out.stats) == 24 == len(out.ids)
    assert [step.is_prefill for step in out.stats] == [True] + [False] * (len(calls) - 1)
    assert out.ids == generate(network, [1, 2, 3, 1, 2], max_new_tokens=24).ids and out.finish == "length"
    assert bool(options) == (len(out.stats) < 24)


def test_transformers_beside_stops_at_the_same_end_token():
    network = tiny(vocab_size=8)
    text = generate(network, [1, 2, 3], max_new_tokens=24).ids
    network.generation_config.eos_token_id = text[5]
    ours = generate(network, [1, 2, 3], max_new_tokens=24)
    theirs = TransformersGenerate(LanguageModel(network, None, "tiny", "cpu", torch.float64))([1, 2, 3], 24)
    assert theirs.ids == ours.ids and theirs.finish == ours.finish == "eos" and len(theirs.ids) < 24
