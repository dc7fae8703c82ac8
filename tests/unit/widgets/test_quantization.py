"""Lesson 10's widget: the numbers of its headline, formats of a fixed width, and what was not measured."""

import pytest
import torch

from lessons_lib.measure.shape import SHAPES
from lessons_lib.quantization.errors import FIXED
from lessons_lib.quantization.sizes import step_bytes
from lessons_lib.widgets.quantization import (
    GROUPS,
    Machine,
    Subject,
    describe_quantization,
    draw_quantization,
    headline,
    moved,
    show_quantization,
)

SHAPE = SHAPES["smollm2-135m"]


@pytest.fixture
def subject():
    weight = torch.randn(32, 576, generator=torch.Generator().manual_seed(0))
    return Subject(weight, SHAPE, Machine(0.01, 1e9), {("minimum", 4, 32): 30.5, ("nf4", 4, 64): 31.25}, 29.0)


def test_bytes_are_those_of_the_table_of_sizes():
    assert moved(SHAPE, "minimum", 4, 32) == step_bytes(SHAPE, "int4 g32", "int4 g32")
    assert moved(SHAPE, "absmax", 8, "row") == step_bytes(SHAPE, "int8", "int8")


def test_speed_is_bytes_over_bandwidth_after_the_overhead():
    assert Machine(0.01, 1e9).tokens_per_second(40e6) == pytest.approx(20)


def test_the_headline_says_bits_error_perplexity_bytes_and_speed(subject):
    said = headline(subject, "minimum", 4, 32)
    assert (
        said.startswith("minimum of 4 bits, groups of 32: 5.00 bits a weight, error 7.")
        and "perplexity 30.5 (29 unrounded)" in said
    )
    assert "84.0 MB a step" in said and f"{1 / (0.01 + 0.08405):.0f} tokens/s predicted" in said
    assert "perplexity not measured" in headline(subject, "minimum", 4, 64)


@pytest.mark.parametrize("bits", [2, 8])
def test_the_bits_slider_moves_integers_alone(subject, bits):
    said = headline(subject, "nf4", bits, 64)
    assert "nf4, groups of 64: 4.13 bits" in said and "31.25" in said
    assert said == headline(subject, "nf4", FIXED["nf4"], 64)
    assert headline(subject, "absmax", bits, "row") != headline(subject, "absmax", 4, "row")


def test_the_headline_is_over_the_figure_and_in_the_alt_text(subject):
    figure = draw_quantization(subject, "e4m3", 8, "row")
    assert "e4m3, a scale a row" in figure.get_suptitle() and len(figure.axes) == 2
    assert headline(subject, "e4m3", 8, "row") in describe_quantization(subject, "e4m3", 8, "row")


def test_the_widget_shows_one_figure_in_a_batch_run(subject, shown):
    show_quantization(subject, "absmax", 3, 64)
    assert len(shown) == 1 and "smollm2-135m before and after rounding" in shown[0] and "absmax of 3 bits" in shown[0]


def test_all_groups_divide_the_rows_of_the_model():
    assert all(columns % g == 0 for g in GROUPS[:-1] for columns in (SHAPE.width, SHAPE.mlp_width))


def test_a_setting_that_its_slider_lacks_is_refused(subject):
    with pytest.raises(ValueError, match="cannot start at 48"):
        show_quantization(subject, group=48)
