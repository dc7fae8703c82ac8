"""Our kernels in C++ against float64: attention for few rows, what they refuse, and why there are none."""

import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.cpu import by_kernel, inputs
from support.rounded import random

from lessons_lib.models.decoder import attend
from lessons_lib.quantization.cpu import native
from lessons_lib.quantization.cpu.linear import NativeW4A8Linear
from lessons_lib.quantization.integers import quantize

ERRORS = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


@by_kernel
@given(
    kv_heads=st.integers(1, 3), groups=st.integers(1, 4), rows=st.integers(1, 9), entries=st.integers(1, 70),
    dim=st.sampled_from([16, 48, 64]), dtype=st.sampled_from([*ERRORS]), seed=st.integers(0, 99),
)  # fmt: skip
def test_few_rows_attend_as_in_float64(kv_heads, groups, rows, entries, dim, dtype, seed):
    q, keys, values, mask = inputs(kv_heads, groups, rows, entries, dim, seed, dtype)
    found = native.attend_few_rows(q, keys, values, mask)
    exact = attend(q.double(), keys.double(), values.double(), mask)
    assert found.dtype == dtype and (found.double() - exact).abs().max() < ERRORS[dtype]


@by_kernel
def test_what_is_masked_and_what_lies_far_below_weighs_nothing():
    q, keys, values, mask = inputs(2, 2, 3, 20, 16)
    mask[:, 5] = False
    changed = values.clone()
    changed[:, 5] = 1e6
    assert torch.equal(*(native.attend_few_rows(q, keys, of, mask) for of in (values, changed)))
    found = native.attend_few_rows(1000 * q, keys, values, mask)  # scores of thousands: the largest alone counts
    exact = attend(1000 * q.double(), keys.double(), values.double(), mask)
    torch.testing.assert_close(found.double(), exact, rtol=0, atol=1e-4)


@by_kernel
def test_views_of_larger_buffers_are_attended_to_as_their_copies():
    q, keys, values, mask = inputs(2, 2, 3, 40, 16)
    mask[:, 0] = True
    views = keys[:, ::2], values[:, ::2], mask[:, ::2]
    exact = native.attend_few_rows(q, *(view.contiguous() for view in views))
    for laid in (q.mT.contiguous().mT, q.transpose(0, 1).contiguous().transpose(0, 1)):
        assert torch.equal(native.attend_few_rows(laid, *views), exact)


@by_kernel
def test_a_compiler_knows_shape_and_strides_whatever_the_queries_are():
    """A wrong promise would be believed: compiled code reads the result by the promised strides."""
    q, *others = inputs(2, 2, 3, 20, 16)
    for laid in (
        q,
        q.transpose(0, 1).contiguous().transpose(0, 1),
        torch.randn(3, 100)[:, :64].view(3, 4, 16).transpose(0, 1),
    ):
        operator = torch.ops.lessons_lib.attend_few_rows.default
        torch.library.opcheck(operator, (laid, *others), test_utils=("test_schema", "test_faketensor"))


@by_kernel
@pytest.mark.parametrize("dim, dtype, sentence", [
    (24, torch.float32, "a head is 24 wide, not a multiple of 16"), (16, torch.float64, "float16, not Double"),
])  # fmt: skip
def test_heads_and_formats_that_the_kernel_lacks_are_refused(dim, dtype, sentence):
    with pytest.raises(ValueError, match=sentence):
        native.attend_few_rows(*inputs(1, 1, 2, 3, dim, dtype=dtype))


@by_kernel
@pytest.mark.parametrize("change, sentence", [
    (lambda q, k, v, m: (q[:3], k, v, m), "H a multiple of H_kv"),
    (lambda q, k, v, m: (q, k, v[:, 1:], m), "keys and values have to be"),
    (lambda q, k, v, m: (q, k.half(), v.half(), m), "in one format"),
    (lambda q, k, v, m: (q, k, v, m[:1]), r"mask has to be \(T, S\) of bool"),
])  # fmt: skip
def test_shapes_that_do_not_fit_are_refused(change, sentence):
    with pytest.raises(ValueError, match=sentence):
        native.attend_few_rows(*change(*inputs(2, 2, 3, 20, 16)))


@pytest.mark.parametrize("change, sentence", [
    (lambda m: m.setattr(torch.cpu, "_is_vnni_supported", lambda: False), "kernels in C.. need a CPU with AVX512-VNNI"),
    (lambda m: m.setattr(torch.cpu, "_is_avx512_supported", lambda: False), "need a CPU with AVX512-VNNI"),
    (lambda m: m.setattr(native, "compiler_problem", lambda device: "no compiler"), "no compiler"),
    (lambda m: m.setattr(native, "SOURCES", ("gone.cpp",)), "kernels in C.. were not compiled .*gone.cpp"),
])  # fmt: skip
def test_why_there_are_no_kernels_is_said(change, sentence, monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    for unit in ("_is_vnni_supported", "_is_avx512_supported"):
        monkeypatch.setattr(torch.cpu, unit, lambda: True)
    monkeypatch.setattr(native, "compiler_problem", lambda device: None)
    change(monkeypatch)
    assert re.search(sentence, native.problem.__wrapped__())


@by_kernel
@pytest.mark.parametrize("change", [
    lambda codes, grid: (codes[:, :, :128].contiguous(), grid, 2), lambda codes, grid: (codes, grid, 8),
    lambda codes, grid: (codes[:, :, :128], grid, 4), lambda codes, grid: (codes, grid[:1], 4),
    lambda codes, grid: (codes, grid.float(), 4), lambda codes, grid: (codes.mT.contiguous().mT, grid, 4),
])  # fmt: skip
def test_codes_that_are_laid_out_otherwise_are_refused(change):
    layer = NativeW4A8Linear(quantize(random(32, 64), 4, 32, "affine"))
    with pytest.raises(ValueError, match="laid out by quantization.cpu.layouts"):
        native.multiply_grouped(random(1, 64), *change(layer.codes, layer.scales_and_minima))
