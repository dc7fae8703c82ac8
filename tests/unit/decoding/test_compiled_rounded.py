"""Rounded decoders as targets: compiled as eager, and as drafts of the model they were made from."""

import pytest
import torch

from lessons_lib import compiler
from lessons_lib.decoding.draft_tree import plain_input
from lessons_lib.decoding.generate import generate
from lessons_lib.decoding.proposers.draft_model import DraftModel
from lessons_lib.decoding.targets import CompiledTarget, DecoderTarget
from lessons_lib.models import LanguageModel, tiny
from lessons_lib.models.decoder import Decoder
from lessons_lib.quantization import cpu, quantize_model
from lessons_lib.quantization.cpu import linear, native

pytestmark = pytest.mark.usefixtures("cold_compiler")
PROMPT, CONTEXT = [5, 80, 3, 3, 61, 7], 32


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


@pytest.mark.parametrize("name, rows", [("W8A8", 1), ("W8A16", 3), ("W4A16", 1), ("W4A16", 3)])
def test_a_rounded_decoder_computes_the_same_compiled(name, rows):
    compare(rounded(name), rows)


def test_4_bits_times_8_attend_by_the_kernel_in_c_plus_plus_where_that_multiplies(kernels, monkeypatch):
    heads = Decoder.from_transformers(tiny(2, torch.float32, width=64, vocab_size=96, tied=True))  # 16 wide each
    calls, attend = [], native.attend_few_rows
    monkeypatch.setattr(native, "attend_few_rows", lambda *given: calls.append(1) or attend(*given))
    for rows, seen in ((1, 0), (3, 1)):
        compare(quantize_model(heads, "W4A8"), rows, fitted=rows > 1)
        assert bool(calls) == bool(seen)
    calls.clear()
    compare(quantize_model(heads, "W8A8"), 3)
    assert not calls


def test_4_bits_times_8_are_layers_compiled_once_and_texts_of_other_lengths(kernels):
    decoder = quantize_model(Decoder.from_transformers(tiny(3, torch.float32, width=64, vocab_size=96)), "W4A8")
    compare(decoder, 3, regional=True)
    compiled, eager = CompiledTarget(decoder, context=96, widths=(3,), fitted=True), DecoderTarget(decoder)
    for context in (16, 80):
        caches = [target.new_cache(context) for target in (compiled, eager)]
        for ids in (PROMPT, [9] * 3, [4, 5, 6]):
            blocks = [plain_input(ids, cache, len(ids)) for cache in caches]
            found = [target.run([block])[0].logits for target, block in zip((compiled, eager), blocks, strict=True)]
            torch.testing.assert_close(*found, rtol=0, atol=2e-4)


@pytest.mark.parametrize("name, rows", [("W8A16", 1), ("W4A16", 1), ("W4A16", 3)])
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


def test_a_model_in_4_bits_drafts_for_itself_and_the_text_is_the_models():
    model = LanguageModel(tiny(2, torch.float64, tied=True), None, "tiny", "cpu", torch.float64)
    target, draft = model.target(), model.target(weights="W4A16")
    plain = generate(target, PROMPT, max_new_tokens=40)
    out = generate(target, PROMPT, DraftModel(draft, 4), max_new_tokens=40)
    assert out.ids == plain.ids and len(out.stats) < 0.8 * len(plain.stats)
    assert generate(draft, PROMPT, max_new_tokens=40).ids != plain.ids
