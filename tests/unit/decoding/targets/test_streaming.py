"""The streaming target: texts of any length in generate, drafts over and by a streaming cache, what it refuses."""

import pytest
import torch
from support.families import tiny_of
from support.graphs import graphs_on_cpu
from support.oracle import PROMPT
from support.proposers import Scripted, always_right, always_wrong, tree_with_decoys

from lessons_lib import DraftModel, generate
from lessons_lib.caches import Streaming
from lessons_lib.decoding.draft_tree import plain_input
from lessons_lib.decoding.targets import CompiledStreamingTarget, DecoderTarget, StreamingTarget
from lessons_lib.models import LanguageModel, tiny
from lessons_lib.models.decoder import Decoder

SMALL, N = Streaming(sinks=2, window=16), 60
LONG = [(7 * i + i * i) % 97 for i in range(300)]  # longer than the context of 256


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    return Decoder.from_transformers(tiny())


@pytest.fixture(scope="module")
def target(decoder) -> StreamingTarget:
    return StreamingTarget(decoder, streaming=SMALL)


@pytest.fixture(scope="module")
def streamed(target) -> list[int]:
    """The greedy text after PROMPT, decoded token by token."""
    return generate(target, PROMPT, max_new_tokens=N).ids


def test_a_text_longer_than_the_context_is_generated_and_a_plain_target_refuses_it(decoder, target):
    output = generate(target, LONG, max_new_tokens=300)
    assert len(output.ids) == 300 and output.stats[0].num_input_tokens == 300
    with pytest.raises(ValueError, match="do not fit the context of 256"):
        generate(DecoderTarget(decoder), LONG, max_new_tokens=300)


def test_sequences_in_one_pass_do_not_see_each_other(target):
    """One is long and runs in chunks, one is short."""
    alone = [target.run([plain_input(ids, target.new_cache(1), 2)])[0].logits for ids in (LONG[:50], LONG[60:70])]
    both = target.run([plain_input(ids, target.new_cache(1), 2) for ids in (LONG[:50], LONG[60:70])])
    for one, output in zip(alone, both, strict=True):
        assert output.logits.shape == (2, 97)
        assert (one - output.logits).abs().max() < 1e-12


def test_until_the_first_eviction_the_text_is_that_of_the_plain_model(decoder, streamed):
    plain = generate(DecoderTarget(decoder), PROMPT, max_new_tokens=N).ids
    full = SMALL.capacity + 1 - len(PROMPT) + 1  # the token at place `capacity` still sees everything
    assert streamed[:full] == plain[:full]
    assert streamed != plain


@pytest.mark.parametrize("make", [always_right, always_wrong, tree_with_decoys], ids=lambda make: make.__name__)
@pytest.mark.parametrize("settings", [{}, {"evict": 5}, {"keys": "rotated"}], ids=["A", "five-at-a-time", "B"])
def test_speculation_over_an_evicting_cache_gives_the_text_of_plain_decoding(decoder, make, settings):
    """Also trees: a draft token sees the window that it would see if it were the next token."""
    target = StreamingTarget(decoder, streaming=Streaming(2, 16, **settings))
    plain = generate(target, PROMPT, max_new_tokens=N).ids
    output = generate(target, PROMPT, Scripted(PROMPT + plain, 97, make), max_new_tokens=N)
    assert output.ids == plain
    assert len(output.stats) < N if make is always_right else len(output.stats) <= N


def test_a_draft_is_no_longer_than_a_chunk(decoder):
    target = StreamingTarget(decoder, streaming=Streaming(2, 16, chunk=3))
    plain = generate(target, PROMPT, max_new_tokens=N).ids
    output = generate(target, PROMPT, Scripted(PROMPT + plain, 97, always_right), max_new_tokens=N)
    assert output.ids == plain
    assert max(step.proposed for step in output.stats) == 2


@pytest.mark.parametrize("children", [(), (2, 2)], ids=["chain", "tree"])
def test_a_streaming_draft_model_drafts_for_a_plain_target(decoder, children):
    """The draft is the model itself, and right until it evicts; after that it drafts on, and the text stays right."""
    plain = DecoderTarget(Decoder.from_transformers(tiny(context=1024)))
    draft = StreamingTarget(decoder, streaming=Streaming(2, 150))
    for prompt, always in ((LONG[:20], True), (LONG, False)):
        text = generate(plain, prompt, max_new_tokens=N).ids
        output = generate(plain, prompt, DraftModel(draft, gamma=4, children=children), max_new_tokens=N)
        assert output.ids == text
        accepted, steps = [(step.accepted, step.depth) for step in output.stats[1:-1]], len(output.stats)
        assert not always or all(count == depth == 4 for count, depth in accepted)
        assert steps < N


def test_a_streaming_draft_model_drafts_no_longer_than_its_cache_can_drop(decoder):
    """The deepest token of a chain is not fed: four may be drafted if three can be dropped."""
    plain = DecoderTarget(decoder)
    draft = StreamingTarget(Decoder.from_transformers(tiny(seed=1)), streaming=Streaming(2, 16, chunk=3))
    text = generate(plain, PROMPT, max_new_tokens=N).ids
    output = generate(plain, PROMPT, DraftModel(draft, gamma=6), max_new_tokens=N)
    assert output.ids == text
    assert max(step.depth for step in output.stats) == 4


@pytest.mark.usefixtures("cold_compiler")
@pytest.mark.parametrize("dtype, atol", [(torch.float64, 1e-12), (torch.float32, 1e-4)], ids=str)
def test_the_compiled_ring_gives_the_eager_logits(dtype, atol):
    """Over a prompt in chunks, three times the cache's capacity, for one token and for padded drafts."""
    decoder = Decoder.from_transformers(tiny(dtype=dtype))
    eager = StreamingTarget(decoder, streaming=SMALL)
    compiled = CompiledStreamingTarget(decoder, streaming=SMALL, widths=(1, 4))
    for sizes in ([20, *[1, 1, 3, 1, 4] * 5], [1, *[3, 1] * 8], [3, 1, 4]):  # 3 is padded to 4; sinks come in a step
        caches, at = {target: target.new_cache(1) for target in (eager, compiled)}, 0
        for size in sizes:
            ids = LONG[at : at + size]
            one, other = (target.run([plain_input(ids, caches[target], size)])[0].logits for target in caches)
            assert (one - other).abs().max() < atol
            at += size
    assert compiled.problem is None and set(compiled.compile_seconds) == {1, 4}
    text = generate(eager, PROMPT, max_new_tokens=N).ids
    assert generate(compiled, PROMPT, max_new_tokens=N).ids == text
    tree = Scripted(PROMPT + text, 97, tree_with_decoys)
    assert generate(compiled, PROMPT, tree, max_new_tokens=N).ids == text


def test_captured_as_a_graph_the_ring_serves_one_text_after_another(decoder, streamed):
    """A stand-in for CUDA graphs replays the step on the buffers of a finished text."""
    with graphs_on_cpu() as captured:
        target = CompiledStreamingTarget(decoder, streaming=SMALL, cuda_graph=True)
        for _ in range(2):
            assert generate(target, PROMPT, max_new_tokens=N).ids == streamed
    assert len(captured) == 1


def test_a_captured_ring_forgets_the_positions_of_a_text_longer_than_the_context(decoder, streamed):
    with graphs_on_cpu():
        target = CompiledStreamingTarget(decoder, streaming=SMALL, cuda_graph=True)
        generate(target, LONG, max_new_tokens=1)
        assert generate(target, PROMPT, max_new_tokens=N).ids == streamed


@pytest.mark.parametrize("settings, widths, error", [
    ({"keys": "rotated"}, (1,), "only unrotated keys"),
    ({"positions": "text"}, (1,), "only unrotated keys"),
    ({"chunk": 4}, (1, 5), "a width of 5 exceeds the chunk of 4"),
])  # fmt: skip
def test_what_the_ring_cannot_do_is_refused(decoder, settings, widths, error):
    with pytest.raises(ValueError, match=error):
        CompiledStreamingTarget(decoder, streaming=Streaming(2, 16, **settings), widths=widths)


def language_model(family: str = "llama") -> LanguageModel:
    network = tiny_of(family)
    return LanguageModel(network, None, "tiny", "cpu", network.dtype)


def test_a_model_makes_its_streaming_target(streamed):
    target = language_model().target(streaming=SMALL)
    assert isinstance(target, StreamingTarget)
    assert generate(target, PROMPT, max_new_tokens=N).ids == streamed


@pytest.mark.parametrize("family, kind, error", [
    ("opt", None, "streaming caches are for the readable decoder"),
    ("gpt_neox", None, "streaming caches are for the readable decoder"),
    ("llama", "transformers", "streaming caches are for the readable decoder"),
])  # fmt: skip
def test_models_that_cannot_stream_are_refused(family, kind, error):
    with pytest.raises(ValueError, match=error):
        language_model(family).target(kind, streaming=SMALL)


def test_a_compiled_streaming_target_takes_no_context():
    assert isinstance(language_model().target(compiled=True, streaming=SMALL), CompiledStreamingTarget)
    with pytest.raises(ValueError, match="leave context out"):
        language_model().target(compiled=True, context=64, streaming=SMALL)
