"""Lesson 03's widget: when compiling has paid, in numbers and in words."""

from lessons_lib.widgets.break_even import describe_break_even, draw_break_even, show_break_even, with_warm_cache

ROWS = [
    {"method": "eager", "startup": 0.0, "per_token": 0.04},
    {"method": "compiled", "startup": 30.0, "per_token": 0.04},
    {"method": "frozen", "startup": 60.0, "per_token": 0.01},
]


def test_a_warm_cache_shortens_the_start_and_leaves_the_steps_alone():
    assert [row["startup"] for row in with_warm_cache(ROWS, 50)] == [0, 15, 30]
    assert [row["per_token"] for row in with_warm_cache(ROWS, 50)] == [row["per_token"] for row in ROWS]


def test_the_description_says_when_each_method_overtakes_the_first():
    said = describe_break_even(ROWS, 4096, 50)
    assert "compiled never" in said and "frozen after 1,000 tokens" in said


def test_the_figure_reaches_as_far_as_the_slider_says():
    ax = draw_break_even(ROWS, 512, 0)
    assert ax.get_xlim() == (0, 512)


def test_the_widget_shows_one_figure_in_a_batch_run(shown):
    show_break_even(ROWS, tokens=3000)
    assert len(shown) == 1 and "up to 4,096 tokens" in shown[0]
