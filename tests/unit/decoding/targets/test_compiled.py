"""The compiled target: the tokens of eager decoding, one graph per width, quantized layers, no compiler."""

import re

import pytest
import torch
import torch._inductor.config as inductor
from support.graphs import EagerStep, graphs_on_cpu
from support.proposers import Scripted, always_right, tree_with_decoys
from torch._inductor.utils import run_and_get_code

from lessons_lib import DraftModel, compiler
from lessons_lib.decoding.draft_tree import ModelInput, plain_input
from lessons_lib.decoding.generate import generate
from lessons_lib.decoding.proposers import Proposer
from lessons_lib.decoding.targets import CompiledTarget, DecoderTarget, compiled
from lessons_lib.models import tiny
from lessons_lib.models.decoder import Decoder
from lessons_lib.models.draft import TrimmedDecoder
from lessons_lib.quantization import cpu, quantize_model
from lessons_lib.quantization.cpu import linear, native

pytestmark = pytest.mark.usefixtures("cold_compiler")
PROMPT, N, CONTEXT = [5, 80, 3, 3, 61, 7], 12, 32


def decoder(layers=2, dtype=torch.float64, seed=0) -> Decoder:
    return Decoder.from_transformers(tiny(layers, dtype=dtype, seed=seed))


@pytest.fixture(scope="module")
def plain() -> CompiledTarget:
    """Compiled in float64 for 1 and 4 tokens; both widths have run once."""
    target = CompiledTarget(decoder(), context=CONTEXT, widths=(1, 4))
    target.pointwise = False  # as on a GPU: the library's matmuls, weights that are not constants
    generate(target, PROMPT, TwoDraftTokens(), max_new_tokens=4)
    generate(target, PROMPT, max_new_tokens=2)
    return target


@pytest.fixture(scope="module")
def eager() -> DecoderTarget:
    return DecoderTarget(decoder())


class TwoDraftTokens(Proposer):
    """Drafts two tokens, whatever they are: an input of three."""

    def propose(self, ids, tree):
        tree.add_chain([1, 2])


def greedy(target, prompt=PROMPT, count=N) -> list[int]:
    return generate(target, prompt, max_new_tokens=count).ids


def test_a_compiled_target_decodes_the_tokens_of_eager_greedy(plain, eager):
    assert greedy(plain) == greedy(eager)
    assert sorted(plain.compile_seconds) == [1, 4]


@pytest.mark.parametrize("width", [1, 4])
def test_a_trimmed_draft_scores_the_whole_vocabulary_compiled_as_it_does_eager(width):
    trimmed = TrimmedDecoder.of(decoder(1), torch.tensor([0, 3, 17, 42, 96]))
    scores = []
    for target in (CompiledTarget(trimmed, context=CONTEXT, widths=(width,)), DecoderTarget(trimmed)):
        cache = target.new_cache(CONTEXT)
        target.run([plain_input(PROMPT, cache)])
        scores += [target.run([plain_input([9] * width, cache, width)])[0].logits]
    assert scores[0].shape == (width, 97) and (scores[0] > float("-inf")).sum() == 5 * width
    torch.testing.assert_close(*scores, rtol=0, atol=1e-10)


def test_tuning_a_product_writes_no_tables_computes_the_same_and_leaves_no_setting_behind(capfd):
    product = torch.nn.Linear(32, 64, bias=False).requires_grad_(False)
    x = torch.randn(1, 32)
    with compiler.settings(frozen=True, max_autotune=True):
        found = torch.compile(product, dynamic=False)(x)
    torch.testing.assert_close(found, product(x))
    assert "AUTOTUNE" not in capfd.readouterr().err
    assert inductor.freezing is False and inductor.max_autotune_gemm is False


def test_layers_compiled_once_decode_the_same_by_one_layers_code():
    network = decoder(3)
    target = CompiledTarget(network, context=CONTEXT, widths=(1, 4), regional=True)
    text = PROMPT + greedy(DecoderTarget(network))
    with inductor.patch(fx_graph_cache=False):  # which knows the code, but does not tell
        found, (code,) = run_and_get_code(greedy, target)
    assert found == text[len(PROMPT) :]
    layers = re.findall(r"= (\w+)\(\1_args\)", code)
    assert len(layers) == 3 and len(set(layers)) == 1
    assert generate(target, PROMPT, Scripted(text, 97, always_right), max_new_tokens=N).ids == text[len(PROMPT) :]


def test_an_input_of_three_is_padded_to_four_and_scored_as_eager_scores_it(plain, eager):
    logits = []
    for target in (plain, eager):
        cache = target.new_cache(CONTEXT)
        for tokens in (PROMPT, [9, 8, 7], [4]):  # eager, padded, and one after the padding
            (scores,) = target.run([plain_input(tokens, cache, len(tokens))])
        logits.append(scores.logits)
        assert cache.length() == len(PROMPT) + 4
    torch.testing.assert_close(*logits, rtol=0, atol=1e-10)


def test_states_after_the_final_norm_come_compiled_and_those_of_a_layer_eagerly(plain, eager):
    for after in (("final",), (1, "final")):
        found = []
        for target in (plain, eager):
            cache = target.new_cache(CONTEXT)
            found += target.run([ModelInput([9, 8, 7], [0, 1, 2], None, cache, 2, after)])
        assert found[0].states.keys() == set(after) and found[0].states["final"].shape == (2, 32)
        for name in after:
            torch.testing.assert_close(found[0].states[name], found[1].states[name], rtol=0, atol=1e-10)


@pytest.mark.parametrize("make", [always_right, tree_with_decoys])
def test_draft_tokens_in_padded_inputs_leave_the_greedy_text_alone(plain, eager, make):
    text = PROMPT + greedy(eager)
    assert generate(plain, PROMPT, Scripted(text, 97, make), max_new_tokens=N).ids == text[len(PROMPT) :]


def test_new_caches_and_prompts_compile_nothing_again(plain):
    greedy(plain, [60, 2, 9])  # both widths; compiles only where another test made the compiler forget
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    with torch.compiler.set_stance("fail_on_recompile"):
        for prompt in (PROMPT, [60, 2, 9], [1] * 20):
            greedy(plain, prompt)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs


def test_without_a_compiler_decoding_goes_on_uncompiled_and_says_so_once(monkeypatch, capsys, eager):
    monkeypatch.setattr(compiled, "compiler_problem", lambda device: "there is no C++ compiler")
    monkeypatch.delenv("LESSONS_LIB_BATCH", raising=False)
    target = CompiledTarget(decoder(), context=CONTEXT)
    assert greedy(target) == greedy(target) == greedy(eager)
    assert capsys.readouterr().err == "there is no C++ compiler; decoding runs uncompiled\n"
    assert target.problem and not target.compile_seconds


def test_a_text_that_does_not_fit_the_static_cache_is_refused_before_anything_runs(plain):
    assert len(greedy(plain, count=CONTEXT + 1 - len(PROMPT))) == CONTEXT + 1 - len(PROMPT)
    with pytest.raises(ValueError, match=f"do not fit the context of {CONTEXT}; shorten the prompt"):
        greedy(plain, count=CONTEXT + 2 - len(PROMPT))


@pytest.mark.parametrize("prompt", [16, 21, 27])
@pytest.mark.parametrize("children", [(2,), (3, 2)])
def test_a_compiled_draft_may_branch_up_to_the_end_of_its_context(eager, monkeypatch, prompt, children):
    """Near the end the padding of an input has no room, although its tokens have."""
    monkeypatch.setattr(compiled, "CompiledStep", EagerStep)
    draft = CompiledTarget(eager.decoder, context=CONTEXT, widths=(1, 4))
    ids = list(range(prompt))
    out = generate(eager, ids, DraftModel(draft, 5, children=children), max_new_tokens=20)
    assert out.ids == greedy(eager, ids, 20)
    assert [step.depth for step in out.stats if step.length_before > CONTEXT + 1] == [0] * (prompt + 20 - CONTEXT - 2)


def test_fitted_caches_are_as_long_as_their_text_needs_and_share_one_graph_per_width():
    network = decoder(1)
    eager = DecoderTarget(network)
    target = CompiledTarget(network, context=96, widths=(1, 4), fitted=True)
    compiled = []
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    for prompt in (PROMPT, PROMPT * 5, [3], PROMPT * 10):
        text = prompt + greedy(eager, prompt)
        compiled.append(target.new_cache(len(text)).capacity)
        assert greedy(target, prompt) == text[len(prompt) :]
        drafted = generate(target, prompt, TwoDraftTokens(), max_new_tokens=N).ids
        assert drafted == text[len(prompt) :]
    assert compiled == [32 + 4, 48 + 4, 16 + 4, 80 + 4] and target.new_cache(96).capacity == 96 + 4
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 2
    assert target.problem is None and sorted(target.compile_seconds) == [1, 4]


def test_a_cache_of_another_target_is_refused_instead_of_read_by_the_wrong_sizes(plain, eager):
    greedy(plain)
    cache = CompiledTarget(eager.decoder, context=2 * CONTEXT, widths=(1, 4)).new_cache(CONTEXT)
    plain.run([plain_input(PROMPT, cache)])  # longer than its widths: eager
    with pytest.raises(ValueError, match="let the target that runs a cache make it"):
        plain.run([plain_input([9], cache)])


def test_steps_are_captured_once_for_each_width_and_write_text_after_text(eager):
    small = decoder(1, seed=1)
    with graphs_on_cpu() as captured:
        target = CompiledTarget(eager.decoder, context=CONTEXT, widths=(1, 5), cuda_graph=True)
        proposer = DraftModel(CompiledTarget(small, context=CONTEXT, widths=(1, 2), cuda_graph=True), 4)
        for prompt in (PROMPT, [60, 2, 9], PROMPT):
            plain = greedy(eager, prompt)
            assert greedy(target, prompt) == plain
            assert generate(target, prompt, proposer, max_new_tokens=N).ids == plain
    assert sorted(len(args[0]) for args in captured) == [1, 1, 5]  # target, draft, and the target's wide step


def test_two_caches_at_a_time_have_graphs_of_their_own_and_later_ones_take_them_over(eager):
    with graphs_on_cpu() as captured:
        target = CompiledTarget(eager.decoder, context=CONTEXT, cuda_graph=True)
        for _ in range(2):
            texts = [PROMPT + greedy(eager), [60, 2, 9] + greedy(eager, [60, 2, 9])]
            caches = [target.new_cache(CONTEXT) for _ in texts]
            for cache, text in zip(caches, texts, strict=True):
                target.run([plain_input(text[:3], cache)])
            for i in range(3, 8):  # in turn
                found = [
                    target.run([plain_input([text[i]], cache)])[0] for text, cache in zip(texts, caches, strict=True)
                ]
            for scores, text in zip(found, texts, strict=True):
                (alone,) = eager.run([plain_input(text[:8], eager.new_cache(8))])
                torch.testing.assert_close(scores.logits, alone.logits, rtol=0, atol=1e-10)
            del caches, cache
    assert len(captured) == 2


def test_a_cache_that_takes_over_buffers_sees_nothing_of_the_text_before(eager):
    with graphs_on_cpu():
        target = CompiledTarget(eager.decoder, context=CONTEXT, cuda_graph=True)
        cache = target.new_cache(CONTEXT)
        for buffer in cache.keys + cache.values:
            buffer.fill_(float("nan"))
        del cache
        assert greedy(target) == greedy(eager)


def test_buffers_and_graphs_of_a_text_in_inference_mode_serve_one_outside_it(eager):
    with graphs_on_cpu() as captured:
        target = CompiledTarget(eager.decoder, context=CONTEXT, cuda_graph=True)
        with torch.inference_mode():
            inside = greedy(target)
        assert inside == greedy(target) == greedy(eager)
    assert len(captured) == 1


def test_a_captured_step_is_the_compiled_one(eager):
    with graphs_on_cpu(problem=None) as captured:
        target = CompiledTarget(eager.decoder, context=CONTEXT, cuda_graph=True)
        assert greedy(target) == greedy(eager)
    assert target.problem is None and list(target.compile_seconds) == [1] and len(captured) == 1


def rounded(name: str, layers: int = 1, **options) -> Decoder:
    return quantize_model(Decoder.from_transformers(tiny(layers, torch.float32, tied=True)), name, **options)


def scores(target, rows: int) -> torch.Tensor:
    cache = target.new_cache(CONTEXT)
    target.run([plain_input(PROMPT, cache)])
    return target.run([plain_input([9] * rows, cache, rows)])[0].logits


def compare(decoder: Decoder, rows: int, **options) -> CompiledTarget:
    compiled = CompiledTarget(decoder, context=CONTEXT, widths=(rows,), **options)
    torch.testing.assert_close(scores(compiled, rows), scores(DecoderTarget(decoder), rows), rtol=0, atol=2e-4)
    assert compiled.problem is None and list(compiled.compile_seconds) == [rows]
    return compiled


@pytest.mark.parametrize("name, rows", [("W8A8", 1), ("W4A16", 3)])
def test_a_rounded_decoder_computes_the_same_compiled(name, rows):
    compare(rounded(name), rows)


def test_4_bits_times_8_attend_by_the_kernel_in_c_plus_plus_where_that_multiplies(kernels, monkeypatch):
    heads = Decoder.from_transformers(tiny(2, torch.float32, width=64, vocab_size=96, tied=True))  # 16 wide each
    calls, attend = [], native.attend_few_rows
    monkeypatch.setattr(native, "attend_few_rows", lambda *given: calls.append(1) or attend(*given))
    for rows, seen in ((1, 0), (3, 1)):
        compare(quantize_model(heads, "W4A8"), rows, fitted=rows > 1)
        assert bool(calls) == bool(seen)


def test_4_bits_times_8_are_layers_compiled_once_and_texts_of_other_lengths(kernels):
    decoder = quantize_model(Decoder.from_transformers(tiny(3, torch.float32, width=64, vocab_size=96)), "W4A8")
    compare(decoder, 3, regional=True)
    compiled, eager = CompiledTarget(decoder, context=96, widths=(3,), fitted=True), DecoderTarget(decoder)
    for context in (16, 80):
        caches = [target.new_cache(context) for target in (compiled, eager)]
        for ids in (PROMPT, [9] * 3, [4, 5, 6]):
            inputs = [plain_input(ids, cache, len(ids)) for cache in caches]
            found = [
                target.run([model_input])[0].logits
                for target, model_input in zip((compiled, eager), inputs, strict=True)
            ]
            torch.testing.assert_close(*found, rtol=0, atol=2e-4)


@pytest.mark.parametrize("name, rows", [("W8A16", 1), ("W4A16", 3)])
def test_rounded_layers_compiled_once_multiply_by_their_own_matrices(name, rows):
    compare(rounded(name, layers=3), rows, regional=True)


def test_with_integer_units_8_bits_go_through_onednn_and_all_are_constants(monkeypatch):
    monkeypatch.setattr(cpu, "integer_units", lambda: True)
    # the compiler's own loops alone: on a CPU without such units oneDNN's kernel overflows
    monkeypatch.setitem(compiler.AUTOTUNED, "max_autotune_gemm_backends", "CPP")
    decoder, calls = rounded("W8A8"), []
    onto = linear.onednn_matmul
    monkeypatch.setattr(linear, "onednn_matmul", lambda *given: calls.append(1) or onto(*given))
    assert decoder.head.constant
    assert not compare(decoder, 1, regional=True).regional  # as arguments, matrices are no constants
    assert len(calls) == 5
