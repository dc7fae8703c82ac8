"""The built pages, checked: links and anchors lead somewhere, pictures have words, nothing comes from elsewhere."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

FETCHED = {"src", "srcset", "poster", "data", "background"}  # attributes that a browser follows by itself
LOADED = {"stylesheet", "icon", "preload", "prefetch", "preconnect", "dns-prefetch", "modulepreload", "manifest"}
ELSEWHERE = re.compile(r"\s*(?:[a-z][a-z0-9+.-]*:)?//", re.I)
IN_STYLE = re.compile(r"(?:url\(|@import)\s*[\"']?\s*((?:https?:)?//[^\s)\"';]+)", re.I)
IN_SCRIPT = re.compile(r"[\"'`]((?:(?:https?|wss?):)?//[a-z0-9-]+(?:\.[a-z0-9-]+)+[^\"'`\s]*)", re.I)
NAMES = ("http://www.w3.org/",)  # of XML dialects: they look like addresses, and nobody fetches them


class Page(HTMLParser):
    """What a page refers to. links: what it leads to; fetched: what a browser loads; ids: places to lead to;
    wordless: pictures without alt text."""

    def __init__(self, text: str):
        super().__init__()
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.ids: set[str] = set()
        self.wordless: list[str] = []
        self.inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        """Note what a tag refers to."""
        has = {name: value or "" for name, value in attributes}
        self.inside = tag if tag in ("style", "script") else ""
        self.ids |= {has[name] for name in ("id", "name") if name in has}
        self.fetched += [has[name] for name in FETCHED & set(has)] + IN_STYLE.findall(has.get("style", ""))
        loads = tag in ("use", "image", "base") or (tag == "link" and LOADED & set(has.get("rel", "").lower().split()))
        (self.fetched if loads else self.links).extend(has[name] for name in ("href", "xlink:href") if name in has)
        if tag == "img" and not has.get("alt", "").strip():
            self.wordless.append(has.get("src", ""))

    def handle_endtag(self, tag: str) -> None:
        """Leave style or script."""
        self.inside = ""

    def handle_data(self, data: str) -> None:
        """Note what a style or script in the page loads."""
        if self.inside:
            self.fetched += addresses(data, f".{self.inside}")


def addresses(text: str, kind: str) -> list[str]:
    """Addresses elsewhere that a style sheet loads, or that stand as a text in a script. kind: how its name ends."""
    found = (IN_SCRIPT if kind in (".js", ".script") else IN_STYLE).findall(text)
    return [address for address in found if not address.startswith(NAMES)]


def problems(folder: Path) -> list[str]:
    """What is wrong with the pages, style sheets and scripts of a folder, a line each."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in files if path.suffix == ".html"}
    return [
        f"{path.relative_to(folder).as_posix()}: {problem}"
        for path in files
        for problem in (of_page(path, pages) if path in pages else of_file(path))
    ]


def of_file(path: Path) -> list[str]:
    """What a style sheet or script loads from elsewhere."""
    if path.suffix not in (".css", ".js"):
        return []
    return [f"loads {address}" for address in addresses(path.read_text(encoding="utf-8"), path.suffix)]


def of_page(path: Path, pages: Mapping[Path, Page]) -> Iterator[str]:
    """A page's requests to elsewhere, its links that lead nowhere, its pictures without words. pages: all there are."""
    page = pages[path]
    yield from (f"loads {address}" for address in page.fetched if ELSEWHERE.match(address))
    yield from (f"a picture without alt text: {source[:80]}" for source in page.wordless)
    for address in dict.fromkeys([*page.links, *(f for f in page.fetched if not ELSEWHERE.match(f))]):
        if said := wrong(address, path, pages):
            yield f"{said}: {address}"


def wrong(address: str, path: Path, pages: Mapping[Path, Page]) -> str:
    """What is wrong with an address on a page; "" if nothing is. Elsewhere only its form can be judged."""
    try:
        parts = urlsplit(address.strip())
    except ValueError:
        return "not an address"
    if parts.scheme in ("data", "mailto", "javascript"):
        return ""
    if parts.scheme or parts.netloc:
        sound = parts.scheme in ("http", "https") and re.fullmatch(r"[\w-]+(\.[\w-]+)+(:\d+)?", parts.netloc)
        return "" if sound and not re.search(r"\s", address.strip()) else "not an address"
    goal = Path(os.path.normpath(path.parent / unquote(parts.path))) if parts.path else path
    if not goal.is_file():
        return "leads to no file"
    place = unquote(parts.fragment)
    return "leads to no place on its page" if place and goal in pages and place not in pages[goal].ids else ""
