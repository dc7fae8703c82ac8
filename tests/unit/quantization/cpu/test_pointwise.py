"""Matmul and attention as sums over products: as the library's, and where the kernel in C++ attends instead."""

import pytest
import torch
from support.cpu import by_kernel, inputs

from lessons_lib.quantization.cpu import native
from lessons_lib.quantization.cpu.pointwise import attend_by_products, attend_natively, multiply_by_products


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_product_of_few_rows_written_as_sums_is_the_library_s(dtype, rows):
    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(n, 33, dtype=torch.float64, generator=generator).to(dtype) for n in (rows, 7))
    expected = x.double() @ weight.double().T
    tolerance = 1e-12 if dtype == torch.float64 else 2**-8 * expected.abs().max()
    assert (multiply_by_products(x, weight).double() - expected).abs().max() <= tolerance
    assert multiply_by_products(x, weight).dtype == dtype


@by_kernel
@pytest.mark.parametrize("rows, dim, called", [(1, 16, 0), (2, 24, 0), (2, 16, 1)])
def test_one_row_and_odd_heads_are_left_to_products(rows, dim, called, monkeypatch):
    calls, attends = [], native.attend_few_rows
    monkeypatch.setattr(native, "attend_few_rows", lambda *given: calls.append(1) or attends(*given))
    given = inputs(2, 3, rows, 10, dim)
    torch.testing.assert_close(attend_natively(*given), attend_by_products(*given))
    assert len(calls) == called
