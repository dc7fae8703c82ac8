"""What a browser sees: a page that is watched, a lesson opened in JupyterLab, a widget in it (Playwright's objects)."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

WIDGET = ".jp-OutputArea-output .widget-vbox:has(.noUi-handle)"
HANDLE = ".noUi-handle"
PROMPTS = "[...document.querySelectorAll('.jp-Notebook .jp-CodeCell .jp-InputPrompt')].map(e => e.innerText)"
ATTACHED = "attachment:"  # a cell's picture: asked for in vain before JupyterLab puts the data there
DONE = f"() => {{ const at = {PROMPTS}; return /\\d/.test(at[0]) && !at.some(text => text.includes('*')) }}"
ERRORS = "[data-mime-type='application/vnd.jupyter.error']"
CUT = """box => [...box.querySelectorAll('.widget-label, .widget-readout')]
    .filter(e => e.offsetParent && (e.scrollWidth > e.clientWidth + 1 || !e.innerText.trim()))
    .map(e => e.innerText || '(empty)')"""
PICTURES = """([pictures, place]) => [...document.querySelectorAll(pictures)].map(e => ({
    alt: e.alt, drawn: e.naturalWidth > 0,
    over: Math.round(e.getBoundingClientRect().right - e.closest(place).getBoundingClientRect().right)}))"""


@dataclass
class Watched:
    """A page of a browser. complaints: what its console said against it, and requests to elsewhere than url."""

    page: Any
    name: str
    folder: Path
    url: str
    complaints: list[str] = field(default_factory=list)

    def __post_init__(self):
        self.page.set_default_timeout(300_000)  # of a click, and the like: long, for a machine with much else to do
        self.page.on("console", self.console)
        self.page.on("pageerror", lambda error: self.complaints.append(f"uncaught: {error}"))
        self.page.on("request", self.request)

    def console(self, message: Any) -> None:
        if message.type == "error" and not message.location.get("url", "").startswith(ATTACHED):
            self.complaints.append(f"console: {message.text} {message.location.get('url', '')}")

    def request(self, request: Any) -> None:
        ours = (self.url, self.url.replace("http", "ws", 1), "data:", "blob:", ATTACHED)
        if not request.url.startswith(ours):
            self.complaints.append(f"request to {request.url}")

    def pictures(self, those: str = ".jp-OutputArea-output img", place: str = ".jp-OutputArea") -> list[str]:
        """What is wrong with the figures: no alt text, not drawn, wider than where they stand (selectors)."""
        found = self.page.evaluate(PICTURES, [those, place])
        return [str(one) for one in found if not one["alt"].strip() or not one["drawn"] or one["over"] > 1]

    def picture(self, name: str, of: Any = None) -> None:
        """A screenshot into build/browser, of the page or of a part of it."""
        (of or self.page).screenshot(path=self.folder / f"{self.name}_{name}.png")


class Opened(Watched):
    """A lesson in JupyterLab."""

    def run_all(self, minutes: float) -> None:
        """Expand all code (a collapsed cell shows no number), run all cells, and wait until none is left to run."""
        for name in ("View", "Expand All Code", "Run", "Run All Cells"):
            self.page.get_by_role("menuitem", name=name, exact=True).click()
        self.page.wait_for_function(DONE, timeout=minutes * 60_000, polling=500)

    def errors(self) -> list[str]:
        """What the cells with an error show, and how many were never run."""
        raised = [output.inner_text()[-800:] for output in self.page.locator(ERRORS).all()]
        left = [text for text in self.page.evaluate(PROMPTS) if not any(letter.isdigit() for letter in text)]
        return raised + ([f"{len(left)} cells were not run"] if left else [])


@dataclass(frozen=True)
class Widget:
    """One box of sliders with its figure."""

    box: Any

    def state(self) -> dict[str, Any]:
        """What a reader has before them: the figure, its alt text, and what stands beside the sliders."""
        image = self.box.locator("img")
        readouts = self.box.locator(".widget-readout").all_inner_texts()
        return {"picture": image.get_attribute("src"), "alt": image.get_attribute("alt"), "readouts": readouts}

    def cut(self) -> list[str]:
        """Labels that are empty or do not fit."""
        return self.box.evaluate(CUT)

    def press(self, handle: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Move one slider by a key, wait for the figure; the state before and after. AssertionError if none comes."""
        last = handle.get_attribute("aria-valuenow") == handle.get_attribute("aria-valuemax")
        before = self.state()
        handle.press("ArrowLeft" if last else "ArrowRight")
        for _ in range(240):  # half a minute; two, on a machine with much else to do
            after = self.state()
            if (after["picture"], after["alt"]) != (before["picture"], before["alt"]):
                return before, after
            handle.page.wait_for_timeout(500)
        raise AssertionError(f"the figure stayed the same after a key was pressed: {before['alt']}")
