"""Lesson 10's widget: the numbers of its headline, formats of a fixed width, and what was not measured."""

import pytest
import torch

from lessons_lib.measure.config import CONFIGS
from lessons_lib.quantization.formats import rounding
from lessons_lib.quantization.sizes import step_bytes
from lessons_lib.widgets.quantization import (
    GROUPS,
    Machine,
    Subject,
    describe_quantization,
    draw_quantization,
    headline,
    moved,
    name_of,
    names,
    show_quantization,
)

SHAPE = CONFIGS["smollm2-135m"]


@pytest.fixture
def subject():
    weight = torch.randn(32, 576, generator=torch.Generator().manual_seed(0))
    return Subject(weight, SHAPE, Machine(0.01, 1e9), {"int4 g32 minimum": 30.5, "nf4 g64 double": 31.25}, 29.0)


def test_sliders_become_names_of_formats_and_each_is_one():
    assert name_of("minimum", 4, 32) == "int4 g32 minimum" and name_of("absmax", 8, "row") == "int8 row absmax"
    assert name_of("nf4", 8, 64) == "nf4 g64 double" and name_of("fp8", 2, "row") == "fp8 row"
    assert len(names()) == len(set(names())) == 7 * 3 * 2 + 3 + 3
    for name in names():
        rounding(name)(torch.ones(2, 192))


def test_bytes_are_those_of_the_table_of_sizes():
    assert moved(SHAPE, "int4 g32 minimum") == pytest.approx(step_bytes(SHAPE, "int4 g32", "int8"), rel=1e-4)
    assert moved(SHAPE, "int8 row absmax") == pytest.approx(step_bytes(SHAPE, "int8", "int8"), rel=1e-4)


def test_speed_is_bytes_over_bandwidth_after_the_overhead():
    assert Machine(0.01, 1e9).tokens_per_second(40e6) == pytest.approx(20)


def test_the_headline_says_bits_error_perplexity_bytes_and_speed(subject):
    said, read = headline(subject, "minimum", 4, 32), step_bytes(SHAPE, "int4 g32", "int8")
    assert said.startswith("int4 g32 minimum: 5.00 bits a weight, error 7.")
    assert f"perplexity 30.5 (29 unrounded), {read / 1e6:.1f} MB a step" in said
    assert f"{1 / (0.01 + read / 1e9):.0f} tokens/s predicted" in said
    assert "perplexity not measured" in headline(subject, "minimum", 4, 64)


@pytest.mark.parametrize("bits", [2, 8])
def test_the_bits_slider_moves_integers_alone(subject, bits):
    said = headline(subject, "nf4", bits, 64)
    assert "nf4 g64 double: 4.13 bits" in said and "31.25" in said
    assert headline(subject, "absmax", bits, "row") != headline(subject, "absmax", 4, "row")


def test_the_headline_is_over_the_figure_and_in_the_alt_text(subject):
    figure = draw_quantization(subject, "fp8", 8, "row")
    assert "fp8 row: 8.06 bits" in figure.get_suptitle() and len(figure.axes) == 2
    assert headline(subject, "fp8", 8, "row") in describe_quantization(subject, "fp8", 8, "row")


def test_the_widget_shows_one_figure_in_a_batch_run(subject, shown):
    show_quantization(subject, "absmax", 3, 64)
    assert len(shown) == 1 and "smollm2-135m before and after rounding" in shown[0] and "int3 g64 absmax" in shown[0]


def test_all_groups_divide_the_rows_of_the_model():
    assert all(columns % g == 0 for g in GROUPS[:-1] for columns in (SHAPE.hidden_size, SHAPE.intermediate_size))


def test_a_setting_that_its_slider_lacks_is_refused(subject):
    with pytest.raises(ValueError, match="cannot start at 48"):
        show_quantization(subject, group=48)
