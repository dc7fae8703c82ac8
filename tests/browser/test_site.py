"""The rendered course in a real browser: on a phone and on a desk, searched, and without anything from elsewhere."""

import pytest
from support.opened import Watched

from lessons_lib.course.bootstrap import ROOT
from lessons_lib.course.lessons import find

PAGES = ["index", "glossary", "bibliography", "scorecard", *(f"lessons/{lesson.name}" for lesson in find())]
SCREENS = {"phone": {"width": 390, "height": 844}, "desk": {"width": 1280, "height": 900}}
OVER = "() => document.documentElement.scrollWidth - window.innerWidth"


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
    assert page.page.evaluate(OVER) <= 0
    assert page.pictures("article img", "article") == []


def test_the_search_finds_a_lesson_by_what_stands_in_it(page):
    page.page.goto(f"{page.url}search.html?q=lookahead")
    found = page.page.locator("#search-results li a", has_text="Jacobi and lookahead").first
    found.wait_for()
    page.picture("search")
    found.click()
    page.page.wait_for_url("**/lessons/08_jacobi_lookahead.html*")
