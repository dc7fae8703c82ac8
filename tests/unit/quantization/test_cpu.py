"""What only CPUs need: the C++ kernels against float64 and without them, and memory that goes back to the system."""

import platform
import re
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lessons_lib.models import tiny
from lessons_lib.models.decoder import Decoder, attend
from lessons_lib.quantization import cpu, quantize_model
from lessons_lib.quantization.cpu import native
from lessons_lib.quantization.cpu.layouts import interleaved
from lessons_lib.quantization.cpu.linear import NativeW4A8Linear
from lessons_lib.quantization.cpu.pointwise import attend_by_products, attend_natively
from lessons_lib.quantization.integers import quantize
from lessons_lib.quantization.linear import W4A8Linear, W8A8Linear, fastest, round_groups

by_kernel = pytest.mark.usefixtures("kernels")

ERRORS = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


def inputs(kv_heads, groups, rows, entries, dim, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    q, keys, values = (
        torch.randn(heads, count, dim, generator=generator).to(dtype)
        for heads, count in ((kv_heads * groups, rows), (kv_heads, entries), (kv_heads, entries))
    )
    mask = torch.rand(rows, entries, generator=generator) < 0.6
    mask[torch.arange(rows), torch.randint(entries, (rows,), generator=generator)] = True  # each row sees something
    return 2 * q, keys, values, mask


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


@by_kernel
@pytest.mark.parametrize("rows, dim, called", [(1, 16, 0), (2, 24, 0), (2, 16, 1)])
def test_one_row_and_odd_heads_are_left_to_products(rows, dim, called, monkeypatch):
    calls, attends = [], native.attend_few_rows
    monkeypatch.setattr(native, "attend_few_rows", lambda *given: calls.append(1) or attends(*given))
    given = inputs(2, 3, rows, 10, dim)
    torch.testing.assert_close(attend_natively(*given), attend_by_products(*given))
    assert len(calls) == called


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


GROUP_ERRORS = {
    torch.float32: 1e-6,
    torch.float16: 1e-3,
    torch.bfloat16: 8e-3,
}  # a step of the last digit; of float32 a few


def random(*shape: int, seed: int = 0, dtype=torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def by_groups(x: torch.Tensor, quantized) -> torch.Tensor:
    """The sum over groups of s·r·sum(q·p) + low·r·sum(p), in float64."""
    q, n = quantized.levels().double().view(quantized.shape[0], -1, 32), quantized.shape[0]
    s, low = (part.double().view(n, -1) for part in (quantized.grid.scales, quantized.grid.lows))
    x = x.float().view(len(x), -1, 32)
    r = x.abs().amax(-1) / 127
    p = (x / torch.where(r == 0, 1, r)[..., None]).round().double()
    products = torch.einsum("ngk,tgk->tng", q, p)
    return (s * products * r.double()[:, None] + low * (r * p.sum(-1))[:, None]).sum(-1)


def test_each_group_of_inputs_has_its_own_scale():
    x = torch.zeros(2, 64)
    x[0, :2], x[0, 32], x[1, 63] = torch.tensor([1.27, 0.014]), 1000.0, -0.5
    expected = x.clone()
    expected[0, 1] = 0.01
    torch.testing.assert_close(round_groups(x), expected)
    assert round_groups(x.double()).dtype == torch.float64


def test_codes_stand_by_quads_of_columns_16_rows_of_each_and_two_of_4_bits_in_a_byte():
    levels = torch.arange(16 * 32, dtype=torch.uint8).view(16, 32)
    eight = interleaved(levels, 8).view(8, 16, 4)
    assert all(torch.equal(eight[quad], levels[:, 4 * quad : 4 * quad + 4]) for quad in range(8))
    four = interleaved(levels % 16, 4).view(4, 16, 4)
    assert four.numel() == 16 * 32 / 2
    for pair in range(4):
        lower, upper = four[pair] & 15, four[pair] >> 4
        assert torch.equal(lower, levels[:, 8 * pair : 8 * pair + 4] % 16)
        assert torch.equal(upper, levels[:, 8 * pair + 4 : 8 * pair + 8] % 16)


@by_kernel
@given(
    rows=st.integers(1, 27), blocks=st.integers(1, 9), groups=st.integers(1, 4), bits=st.sampled_from([4, 8]),
    dtype=st.sampled_from([*GROUP_ERRORS]), seed=st.integers(0, 99),
)  # fmt: skip
def test_the_kernel_adds_up_what_the_formula_says(rows, blocks, groups, bits, dtype, seed):
    """Up to 27 rows: two calls of 12 rows, the most, and a rest. Up to 9 blocks: more than one thread's share."""
    x = random(rows, 32 * groups, seed=seed, dtype=dtype)
    quantized = quantize(random(16 * blocks, 32 * groups, seed=seed + 100), bits, 32, "affine")
    found, exact = NativeW4A8Linear(quantized)(x), by_groups(x, quantized)
    assert found.dtype == dtype
    assert ((found.double() - exact).abs() <= GROUP_ERRORS[dtype] * exact.abs().max()).all()


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("dtype", [*GROUP_ERRORS])
def test_without_the_kernel_rounded_inputs_meet_what_multiplies_such_weights(bits, rows, dtype, monkeypatch):
    monkeypatch.setattr(native, "problem", lambda: "no kernel today")
    x, weight = random(rows, 96, dtype=dtype), random(32, 96, seed=1, dtype=dtype)
    quantized = quantize(weight, bits, 32, "affine")
    layer, exact = fastest(W4A8Linear, quantized), by_groups(x, quantized)
    found = layer(x)
    assert type(layer) is W4A8Linear and found.dtype == dtype
    assert (found.double() - exact).abs().max() <= 5 * GROUP_ERRORS[dtype] * exact.abs().max()


@by_kernel
def test_inputs_of_any_stride_and_of_nothing_but_zeros():
    quantized = quantize(random(16, 32), 4, 32, "affine")
    layer, x = NativeW4A8Linear(quantized), random(32, 6, seed=1).T
    assert not x.is_contiguous() and torch.equal(layer(x), layer(x.contiguous()))
    assert torch.equal(layer(torch.zeros(2, 32)), torch.zeros(2, 16))


def test_a_loud_input_spoils_its_own_group_alone():
    """Negative control: with one scale a row it spoils all of them."""
    x, weight = random(1, 640), random(16, 640, seed=1)
    x[0, 0] = 1000.0
    weight[:, :32] = 0
    off = lambda layer: (layer(x) - x @ weight.T).abs().max()  # noqa: E731
    grouped_bits, row_bits = W4A8Linear(quantize(weight, 8, 32, "affine")), W8A8Linear(quantize(weight, 8))
    assert 20 * off(grouped_bits) < off(row_bits)


@pytest.mark.parametrize("quantized", [
    quantize(random(20, 32), 4, 32, "affine"), quantize(random(16, 32), 4, 32, "affine", scale_dtype=torch.float32),
    quantize(random(16, 32, dtype=torch.float64), 4, 32, "affine"),
], ids=["rows", "scales", "dtype"])  # fmt: skip
def test_what_the_kernel_cannot_take_is_multiplied_without_it(quantized):
    layer, x = fastest(W4A8Linear, quantized), random(2, 32, dtype=quantized.dtype)
    assert type(layer) is W4A8Linear
    torch.testing.assert_close(layer(x), round_groups(x) @ quantized.dequantize().T)


@by_kernel
def test_what_the_kernel_can_take_goes_through_it():
    assert type(fastest(W4A8Linear, quantize(random(16, 32), 8, 32, "affine"))) is NativeW4A8Linear


@pytest.mark.parametrize("how", [(3, 32, "affine"), (4, 16, "affine"), (4, 64, "affine"), (8, 32, "absmax")])
@pytest.mark.parametrize("kind", [W4A8Linear, NativeW4A8Linear])
def test_other_formats_are_refused(kind, how):
    with pytest.raises(ValueError, match='takes quantize.weight, 4 or 8, 32, "affine".'):
        kind(quantize(random(16, 64), *how))
    with pytest.raises(ValueError, match="of a matrix"):
        kind(quantize(random(2, 16, 32), 4, 32, "affine"))


@by_kernel
@pytest.mark.parametrize("x, sentence", [
    (torch.zeros(1, 64), r"x is \[1, 64\], not \(T, 32\)"), (torch.zeros(32), "not .T, 32"),
    (torch.zeros(1, 32, dtype=torch.float64), "float32, bfloat16 and float16, not Double"),
])  # fmt: skip
def test_inputs_that_do_not_fit_are_refused(x, sentence):
    with pytest.raises(ValueError, match=sentence):
        NativeW4A8Linear(quantize(random(16, 32), 4, 32, "affine"))(x)


@by_kernel
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_what_is_no_number_stays_none_with_the_kernel_and_without(value):
    quantized, x = quantize(random(16, 64), 4, 32, "affine"), random(2, 64, seed=1)
    x[1, 40] = value
    for kind in (NativeW4A8Linear, W4A8Linear):
        found = kind(quantized)(x)
        assert found[0].isfinite().all() and found[1].isnan().all()


@by_kernel
def test_a_compiler_knows_the_shape_whatever_is_laid_out():
    layer = NativeW4A8Linear(quantize(random(32, 64), 4, 32, "affine"))
    operator = torch.ops.lessons_lib.multiply_grouped.default
    for x in (random(3, 64), random(64, 3).T, random(3, 64, dtype=torch.bfloat16)):
        torch.library.opcheck(
            operator, (x, layer.codes, layer.scales_and_minima, 4), test_utils=("test_schema", "test_faketensor")
        )


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


def resident() -> int:
    """Bytes of this process that lie in memory."""
    return int(Path("/proc/self/status").read_text().split("VmRSS:")[1].split()[0]) * 1024


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc keeps freed pieces, and can give them back")
def test_freed_pieces_below_one_that_lives_go_back_to_the_system():
    pieces = [torch.ones(1 << 14) for _ in range(1600)]
    living = torch.ones(1 << 14)
    del pieces
    kept = resident()
    cpu.trim_heap()
    assert resident() < kept - 50e6 and living.sum() == 1 << 14


def test_what_rounding_freed_goes_back_to_the_system_even_where_it_fails(monkeypatch):
    calls, decoder = [], Decoder.from_transformers(tiny())
    monkeypatch.setattr(cpu, "trim_heap", lambda: calls.append("given back"))
    quantize_model(decoder, "W8A8")
    with pytest.raises(ValueError):
        quantize_model(decoder, "int99")
    assert calls == ["given back"] * 2
