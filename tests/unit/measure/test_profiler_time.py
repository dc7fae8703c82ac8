"""Taking a step apart: kernels fall into the right part, and the parts add up to the step."""

import pytest
import torch

from lessons_lib.measure import clock
from lessons_lib.measure.profiler import grouped, kernel_times, profile_parts


@pytest.mark.parametrize("kernel, part", [
    ("aten::mm", "matrix products"),
    ("aten::addmm", "matrix products"),
    ("aten::_weight_int8pack_mm", "matrix products"),
    ("mkldnn::_linear_pointwise", "matrix products"),
    ("mkl::_mkl_linear", "matrix products"),
    ("graph_5_gemm_m1n960k576_kernel", "matrix products"),
    ("graph_0_cpp_fused__softmax_addcmul_mul_roll_1", "attention"),
    ("graph_0_cpp_fused__softmax_add_embedding_mul_rsqrt_silu_split_sum_view_0", "one kernel"),
    ("## Call CompiledFxGraph fhn2wfaqxtjt ##", "launch"),
    ("Torch-Compiled Region: 0/0", "launch"),
    ("aten::_scaled_dot_product_flash_attention_for_cpu", "attention"),
])  # fmt: skip
def test_kernels_fall_into_the_part_they_belong_to(kernel, part):
    assert grouped({kernel: 1.0})[part] == 1.0


@pytest.mark.parametrize("kernel", ["aten::add", "aten::argmax", "graph_0_cpp_fused_mul_silu_split_3", "aten::mul"])
def test_other_kernels_belong_to_the_rest(kernel):
    assert not any(grouped({kernel: 1.0}).values())


def test_a_kernel_counts_once_for_the_first_part_that_matches():
    assert grouped({"both": 2.0}, {"first": "bo", "second": "both"}) == {"first": 2.0, "second": 0.0}


def test_the_profiler_sees_a_matrix_product():
    a = torch.ones(64, 64)
    assert kernel_times(lambda: a @ a)["aten::mm"] > 0


def test_parts_add_up_to_the_time_without_the_profiler(monkeypatch):
    monkeypatch.setattr(clock, "timed", lambda step, device, repeats: clock.Samples((1000.0,)))
    a = torch.ones(64, 64)
    parts = profile_parts(lambda: (a @ a).softmax(-1), runs=2)
    assert list(parts) == ["matrix products", "attention", "the rest"] and all(parts.values())
    assert list(profile_parts(lambda: a + 1, runs=2)) == ["the rest"]
    assert sum(parts.values()) == pytest.approx(1000.0)


@pytest.mark.parametrize("launch, rest", [(300.0, 700.0), (5000.0, 0.0)])
def test_launching_is_a_share_of_the_rest_and_never_more(monkeypatch, launch, rest):
    monkeypatch.setattr(clock, "timed", lambda step, device, repeats: clock.Samples((1000.0,)))
    a = torch.ones(64, 64)
    parts = profile_parts(lambda: a + 1, runs=2, launch=launch)
    assert parts == {"launch": 1000.0 - rest, "the rest": rest}


def test_a_step_is_taken_into_the_parts_that_are_asked_for():
    a = torch.ones(64, 64)
    assert set(profile_parts(lambda: (a + 1).exp(), runs=2, parts={"exponentials": r"aten::exp"})) == {
        "exponentials",
        "the rest",
    }
