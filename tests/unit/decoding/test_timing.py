"""What is timed does the work that it stands for. No time is asserted."""

from dataclasses import replace

import pytest
from support.targets import decoder_target

from lessons_lib import Jacobi
from lessons_lib.decoding import timing
from lessons_lib.decoding.generate import generate
from lessons_lib.decoding.targets import CompiledTarget, DecoderTarget, TransformersTarget
from lessons_lib.measure.clock import Samples
from lessons_lib.measure.config import CONFIGS
from lessons_lib.models import tiny

PROMPT = [5, 6, 7, 8]


def test_a_request_has_one_time_per_token_for_ours_and_for_transformers():
    ours, theirs = timing.time_request(decoder_target(tiny()), PROMPT, 5), timing.time_transformers(tiny(), PROMPT, 5)
    for timeline in (ours, theirs):
        assert len(timeline.times) == 5
        assert timeline.start < timeline.times[0] and list(timeline.times) == sorted(timeline.times)


def test_every_prompt_is_asked_by_every_method_in_turn_with_a_new_proposer_each_time():
    made, prompts, short = [], {"a": PROMPT, "b": [9, 9, 9]}, dict(max_new_tokens=4, min_new_tokens=4)

    def jacobi():
        made.append(Jacobi(3))
        return made[-1]

    target = decoder_target(tiny())
    took, outs = timing.time_requests(target, prompts, {"plain": lambda: None, "jacobi": jacobi}, "cpu", 3, **short)
    assert list(took) == [("plain", "a"), ("jacobi", "a"), ("plain", "b"), ("jacobi", "b")]
    assert {len(samples.times) for samples in took.values()} == {3} and len(set(map(id, made))) == 2 * 3
    for (method, name), out in outs.items():
        assert out.ids == generate(target, prompts[name], **short).ids
        assert (sum(step.proposed for step in out.stats) > 0) == (method == "jacobi")


def test_the_output_that_is_kept_is_that_of_the_run_of_median_time(monkeypatch):
    texts = iter("abcd")
    monkeypatch.setattr(timing, "generate", lambda *given: next(texts))

    def in_turn(calls, device, repeats, warmup):
        for call in calls.values():
            [call() for _ in range(repeats)]
        return dict.fromkeys(calls, Samples((4.0, 1.0, 3.0, 2.0)))

    monkeypatch.setattr(timing, "in_turn", in_turn)
    _, outs = timing.time_requests(None, {"prompt": PROMPT}, {"plain": lambda: None}, "cpu", 4)
    assert outs == {("plain", "prompt"): "d"}  # of the two middle ones the faster


def test_launching_is_timed_on_narrow_models_with_the_layers_of_the_shape(monkeypatch):
    timed = []
    monkeypatch.setattr(timing, "repeatable_step", lambda target, prompt: timed.append(target) or (lambda: None))
    shape = replace(CONFIGS["smollm2-135m"], num_layers=3)
    times = timing.launch_times(shape, "bf16", 1500, repeats=2)
    assert list(times) == ["transformers", "decoder", "compiled"]
    assert list(map(type, timed)) == [TransformersTarget, DecoderTarget, CompiledTarget]
    assert {len(layers) for layers in (timed[0].network.model.layers, timed[1].decoder.layers)} == {3}
    assert min(timed[1].context, timed[2].context) > 1500  # room for what is cached and the step


def test_every_call_of_a_batched_step_adds_the_greedy_token_to_every_request():
    plain = generate(decoder_target(tiny()), PROMPT, max_new_tokens=5, min_new_tokens=5).ids
    advance = timing.batched_transformers_step(tiny(), PROMPT, 3)
    assert [advance() for _ in range(4)] == [[token] * 3 for token in plain[1:]]


def test_a_batched_step_of_ours_runs_all_sequences_in_one_pass(monkeypatch):
    target, fed = decoder_target(tiny()), []
    run = target.run
    monkeypatch.setattr(target, "run", lambda inputs: fed.append([one.tokens for one in inputs]) or run(inputs))
    advance = timing.batched_step(target, PROMPT, 3)
    advance(), advance()
    plain = generate(decoder_target(tiny()), PROMPT, max_new_tokens=3, min_new_tokens=3).ids
    assert fed[0] == [PROMPT] * 3
    assert fed[1:3] == [[[plain[0]]] * 3, [[plain[1]]] * 3]


def test_a_twin_has_the_layers_of_a_shape_and_hardly_any_weights():
    shape = CONFIGS["smollm2-135m"]
    decoder = timing.overhead_proxy(shape, "fp32", context=32).decoder
    assert len(decoder.layers) == shape.num_layers and decoder.config.hidden_size == 32
    assert sum(p.numel() for p in decoder.parameters()) < shape.weights / 100


def test_matmuls_in_a_cache_are_those_of_the_first_layer_for_all(monkeypatch):
    decoder, seen = decoder_target(tiny(layers=3)).decoder, []
    for name in ("qkv", "out", "gate_up", "down"):
        getattr(decoder.layers[0], name).register_forward_pre_hook(lambda of, args: seen.append((args[0].shape, of)))
    monkeypatch.setattr(timing, "timed", lambda call, *given, **how: call() and Samples((2.0,)))
    assert timing.matmuls_in_cache(decoder) == pytest.approx(3 * 4 * 2.0 / 20)
    first = decoder.layers[0]
    expected = [((1, m.in_features), m) for m in (first.qkv, first.out, first.gate_up, first.down)]
    assert [(tuple(shape), of) for shape, of in seen[::20]] == expected and len(seen) == 80
