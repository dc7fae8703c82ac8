"""A browser, a JupyterLab and the lessons asked for. `make test-browser` runs these tests, `make test` does not."""

import pytest
from support import lab as jupyter
from support.opened import Opened
from support.static import served

from lessons_lib.course.lessons import find, parameters, select
from lessons_lib.paths import ROOT

BUILD = ROOT / "build" / "browser"

# What is looked at is the page, not the numbers: parameters with which a lesson's cells all run, and soon.
SHORT = {
    "00": {"prompt_tokens": 64, "max_new_tokens": 4, "repeats": 1},
    "01": {"prompt_lengths": [16, 64, 128], "batches": [1, 4], "max_new_tokens": 6, "repeats": 1},
    "02": {"shown_tokens": 4, "max_new_tokens": 16, "repeats": 1},
    "03": {"max_new_tokens": 8, "repeats": 1, "cold": False},
    "04": {"prompt_tokens": 256, "longest": 1024, "repeats": 1},
    "05": {"num_requests": 6, "repeats": 1},
    "05x": {"study_requests": 100},
    "06": {"max_new_tokens": 12, "timed_tokens": 10, "repeats": 1},
    "07": {"max_new_tokens": 16, "timed_tokens": 12, "repeats": 1},
    "08": {"max_new_tokens": 16, "repeats": 1},
    "09": {"train_steps": 2, "max_new_tokens": 12, "timed_tokens": 10, "repeats": 1},
    "10": {"tokens": 256, "calibration": 512, "repeats": 1},
    "11": {"max_new_tokens": 8, "context": 384, "repeats": 1},
    "12": {"longest": 512, "tokens": 64, "repeats": 1},
    "13": {"num_questions": 2, "train_steps": 4, "repeats": 1},
    "16": {"shown_tokens": 8, "text_tokens": 400, "capacity": 96, "repeats": 1},
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--lessons", nargs="+", default=[], help="numbers or names; all lessons without it")
    parser.addoption("--full", action="store_true", help="the lessons' own parameters, not the short ones")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "lesson" in metafunc.fixturenames:
        chosen = select(find(), metafunc.config.getoption("--lessons"))
        metafunc.parametrize("lesson", chosen, ids=lambda lesson: lesson.name)


@pytest.fixture(scope="session")
def chromium():
    """Debian's Chromium, or any other on the PATH, without a window."""
    playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is missing: pip install .[browser]")
    path = jupyter.find_chromium()
    if path is None:
        pytest.skip("Chromium is missing: install it, as with `apt install chromium`, and run this again")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=path, args=jupyter.FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def site(chromium):
    """The address of the rendered course, served from build/site."""
    folder = ROOT / "build" / "site"
    if not (folder / "index.html").exists():
        pytest.skip("the site is not there: `make site` builds it")
    with served(folder) as url:
        yield url


@pytest.fixture(scope="session")
def lab(chromium):
    """A running JupyterLab on build/browser/notebooks."""
    notebooks = BUILD / "notebooks"
    notebooks.mkdir(parents=True, exist_ok=True)
    with jupyter.jupyter_lab(BUILD / "jupyter", notebooks) as running:
        yield running


@pytest.fixture
def opened(lab, chromium, lesson, request):
    """The lesson's copy in JupyterLab with its kernel idle: an Opened. Its kernel ends with the test."""
    short = {} if request.config.getoption("--full") else SHORT.get(lesson.number, {})
    assert set(short) <= set(parameters(lesson)), "SHORT names a parameter that the lesson does not have"
    jupyter.copy(lesson, short, BUILD / "notebooks")
    page = chromium.new_page(viewport={"width": 1280, "height": 900})
    shown = Opened(page, lesson.name, BUILD, lab["url"])
    place = f"lab/workspaces/{lesson.number}/tree/{lesson.path.name}"  # else the tabs of lessons before come back
    page.goto(f"{lab['url']}{place}?reset&token={lab['token']}")
    page.locator(".jp-StatusBar-TextItem", has_text="| Idle").wait_for()
    yield shown
    shown.picture("end")
    page.close()
    jupyter.stop_kernels(lab)
