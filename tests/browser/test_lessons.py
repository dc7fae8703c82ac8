"""Lessons in a real browser: run all cells, move every slider by keyboard, and see that the figure follows."""

import re

from support.opened import HANDLE, WIDGET, Widget

MINUTES = 30  # for one lesson's cells, on a machine with much else to do


def test_the_lesson_runs_and_its_figures_follow_the_keyboard(opened, lesson):
    opened.run_all(MINUTES)
    assert opened.errors() == []
    assert opened.pictures() == []
    assert opened.pictures(".jp-MarkdownOutput img", ".jp-MarkdownOutput") == []
    boxes = opened.page.locator(WIDGET)
    shows = any(re.search(r"from lessons_lib\.course\.\w+ import .*\bshow_", c.source) for c in lesson.read().cells)
    assert bool(boxes.count()) == shows
    for number in range(boxes.count()):
        move(opened, Widget(boxes.nth(number)), f"widget_{number}")
    assert opened.pictures() == []
    assert opened.complaints == []


def move(opened, widget, name):
    """Every slider of a widget, reached by Tab from the one before, changes its own value and the figure's words.

    The figure itself changes for one of them at least: a setting may make no difference to what is drawn.
    """
    handles, changed = widget.box.locator(HANDLE).all(), set()
    opened.picture(f"{name}_start", widget.box)
    assert widget.cut() == []
    handles[0].focus()
    for number, handle in enumerate(handles):
        assert handle.evaluate("e => e === document.activeElement"), f"Tab does not reach slider {number}"
        before, after = widget.press(handle)
        opened.picture(f"{name}_slider_{number}", widget.box)
        parts = {part for part in before if before[part] != after[part]}
        assert parts >= {"alt", "readouts"}, f"slider {number} changes nothing but {parts}"
        assert widget.cut() == []
        changed |= parts
        opened.page.keyboard.press("Tab")
    assert "picture" in changed
