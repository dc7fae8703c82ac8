"""A display of steps: all of it is in the page, one step is shown, and ids never meet."""

import re
from html.parser import HTMLParser

import pytest

from lessons_lib.course import stepper as module
from lessons_lib.course.figures import BLUE, ORANGE
from lessons_lib.course.stepper import Step, stepper

LEGEND = {"computed": ORANGE, "cached": BLUE}
STEPS = [
    Step("Prefill", [["now", ("a<b", "computed")], ["kept", ("a<b", "cached")]], "Two & three."),
    Step("Decode", [["x < y", "indented"]], "One."),
    Step("Again", [["now", ("mat", "computed")]], "And one."),
]


class Page(HTMLParser):
    """The tags of a page, each with its attributes; ValueError for a tag that is closed in the wrong place."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.open = [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag != "input":
            self.open.append(tag)

    def handle_endtag(self, tag):
        if self.open.pop() != tag:
            raise ValueError(f"</{tag}> in the wrong place")

    def of(self, name):
        return [attrs for tag, attrs in self.tags if tag == name]


def html():
    return stepper(STEPS, "How a cache fills", LEGEND)._repr_html_()


@pytest.fixture
def page():
    return html()


def test_every_step_is_in_the_page_once_and_escaped(page):
    assert page.count('<td class="box"') == 3 and page.count("a&lt;b</td>") == 2 and "a<b" not in page
    assert "<td>x &lt; y</td>" in page and "Two &amp; three." in page
    for number, title in enumerate(("Prefill", "Decode", "Again"), 1):
        assert page.count(f">{number}/3 {title}</strong>") == 1


def test_there_is_one_button_for_each_step_and_one_for_all(page):
    buttons = Page(page).of("input")
    assert [b["value"] for b in buttons] == ["1", "2", "3", "all"]
    assert [b["value"] for b in buttons if "checked" in b] == ["1"]
    assert len({b["name"] for b in buttons}) == 1 and all(b["aria-label"] for b in buttons)
    assert all("data-lm-suppress-shortcuts" in b for b in buttons)  # or JupyterLab takes their arrow keys


def test_back_and_next_lead_to_the_neighbours_and_end_at_the_ends(page):
    ways = {(label["class"].split()[1], label["for"].rsplit("-", 1)[1]) for label in Page(page).of("label")[1:]}
    assert ways == {("next", "2"), ("back", "1"), ("next", "3"), ("back", "2")}
    assert [s["class"] for s in Page(page).of("span")] == ["turn back", "turn next"]


def test_without_the_style_sheet_all_steps_are_there_and_no_button_is():
    stripped = re.sub(r"<style>.*?</style>", "", html(), flags=re.S)
    assert all("hidden" in button for button in Page(stripped).of("input"))
    assert not any("hidden" in attrs or "display" in attrs.get("style", "") for attrs in Page(stripped).of("div"))
    assert "Back" not in stripped and "Next" not in stripped


def test_steps_are_hidden_on_screens_only_so_that_print_has_all(page):
    screen = re.search(r"@media screen \{(.*?)\n\}", page, re.S).group(1)
    assert screen.count("display: block") == 3
    rest = page.replace(screen, "")
    assert not re.search(r"\.step \{[^}]*display: none", rest)


def test_two_displays_share_no_id_even_with_equal_content():
    first, second = (Page(html()).tags for _ in range(2))
    ids = [{attrs["id"] for _, attrs in tags if "id" in attrs} for tags in (first, second)]
    assert len(ids[0]) == 1 + 4 + 3 and not ids[0] & ids[1]
    wanted = {attrs["for"] for _, attrs in second if "for" in attrs}
    assert wanted <= ids[1]


def test_a_fresh_process_makes_the_same_page(monkeypatch):
    pages = []
    for _ in range(2):
        monkeypatch.setattr(module, "MADE", module.Counter())
        pages.append(html())
    assert pages[0] == pages[1]


def test_nothing_is_loaded_from_elsewhere(page):
    assert not re.search(r"https?:|//|@import|url\(|<script|<link|<img", page)


def test_a_cell_is_explained_by_words_as_well_as_by_colour(page):
    cells = [td for td in Page(page).of("td") if td.get("class") == "box"]
    assert [td["aria-label"] for td in cells] == ["a<b (computed)", "a<b (cached)", "mat (computed)"]
    assert all(f">{key}</b>" in page for key in LEGEND)


def test_text_shows_all_steps():
    text = repr(stepper(STEPS, "How a cache fills", LEGEND))
    assert text.startswith("How a cache fills\n\n1/3 Prefill\nnow  a<b\nkept  a<b\nTwo & three.\n\n2/3 Decode\nx < y  ")


def test_a_display_without_a_label_is_refused():
    with pytest.raises(ValueError, match="label"):
        stepper(STEPS, " ", LEGEND)
