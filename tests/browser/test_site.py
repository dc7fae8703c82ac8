"""The rendered course in a real browser: on a phone and on a desk, searched, and without anything from elsewhere."""

import pytest
from support.opened import Watched

from lessons_lib.course.lessons import find
from lessons_lib.paths import ROOT

PAGES = ["index", "glossary", "references", "lessons/scorecard", *(f"lessons/{lesson.name}" for lesson in find())]
SCREENS = {"phone": {"width": 390, "height": 844}, "desk": {"width": 1280, "height": 900}}
STEPPED = [lesson.name for lesson in find() if 'class=\\"step\\"' in lesson.path.read_text(encoding="utf-8")]
# what reaches past the screen and stands in nothing that can be scrolled: the theme cuts it
CUT = """() => [...document.querySelectorAll('article *')].filter(e => {
    const scrolls = p => ['auto', 'scroll'].includes(getComputedStyle(p).overflowX)
    if (e.getBoundingClientRect().right <= window.innerWidth + 1) return false
    for (let p = e.parentElement; p.tagName !== 'ARTICLE'; p = p.parentElement) if (scrolls(p)) return false
    return true
}).map(e => `${e.tagName} ${e.className} ${e.textContent.slice(0, 40)}`)"""


@pytest.fixture(params=SCREENS)
def page(request, chromium, site):
    """A page on a screen of one of the two sizes; what the browser complained of fails the test."""
    opened = chromium.new_page(viewport=SCREENS[request.param])
    watched = Watched(opened, f"site_{request.param}", ROOT / "build" / "browser", site)
    yield watched
    opened.close()
    assert watched.complaints == []


@pytest.mark.parametrize("name", PAGES)
def test_a_page_fits_the_screen_and_shows_its_figures_with_their_words(page, name):
    page.page.goto(f"{page.url}{name}.html")
    page.picture(name.replace("/", "_"))
    assert page.page.evaluate(CUT) == []
    assert page.pictures("article img", "article") == []


def shown(box):
    """The numbers of a stepper's visible steps."""
    return [number for number, step in enumerate(box.locator(".step").all(), 1) if step.is_visible()]


@pytest.mark.parametrize("name", STEPPED)
def test_steps_turn_by_click_and_by_key_and_can_all_be_shown(page, name):
    page.page.goto(f"{page.url}lessons/{name}.html")
    for box in page.page.locator("[role=group]:has(> .steps)").all():
        assert shown(box) == [1]
        box.locator(".next:visible").click()
        assert shown(box) == [2]
        page.page.keyboard.press("ArrowLeft")
        assert shown(box) == [1]
        box.locator("label.all").click()
        assert len(shown(box)) == box.locator(".step").count()


def test_the_search_finds_a_lesson_by_what_stands_in_it(page):
    page.page.goto(f"{page.url}search.html?q=lookahead")
    found = page.page.locator("#search-results li a", has_text="Jacobi and lookahead").first
    found.wait_for()
    page.picture("search")
    found.click()
    page.page.wait_for_url("**/lessons/08_jacobi_lookahead.html*")
