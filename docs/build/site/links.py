"""Check the built site: every link and anchor, every picture, and that nothing is fetched."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# Elements that a browser loads by itself.
_LOADED = {"img": "src", "script": "src", "source": "src", "iframe": "src", "link": "href"}
_CSS_ADDRESS = re.compile(r"url\(\s*['\"]?(?!data:|#)([^'\")]+)")
_NETWORK = ("http://", "https://", "//")


@dataclass
class Page:
    """What a page offers and asks for."""

    anchors: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)
    unnamed: int = 0


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.page = Page()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.page.anchors |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.page.links.append(values["href"])
        named = tag == "link" and values.get("rel") in ("canonical", "prev", "next")
        if values.get(_LOADED.get(tag, "")) and not named:
            self.page.loaded.append(values[_LOADED[tag]])
        if tag == "img" and "alt" not in values:
            self.page.unnamed += 1


def read_page(path: Path) -> Page:
    """Read the links, anchors and loaded files of a page."""
    reader = _Reader()
    reader.feed(path.read_text(encoding="utf-8"))
    return reader.page


def find_faults(folder: Path) -> list[str]:
    """Find what is wrong with a built site.

    Args:
        folder: Where it was built.

    Returns:
        A sentence for each fault; empty if there is none.
    """
    pages = {path: read_page(path) for path in sorted(folder.rglob("*.html"))}
    faults = [f"{folder} has no page"] if not pages else []
    for path, page in pages.items():
        name = path.relative_to(folder).as_posix()
        root = folder if path.name == "404.html" else None
        faults += [f"{name}: {fault}" for fault in _check_page(path, page, pages, root)]
    for sheet in folder.rglob("*.css"):
        for address in _CSS_ADDRESS.findall(sheet.read_text(encoding="utf-8")):
            if address.startswith(_NETWORK) or not (sheet.parent / address).exists():
                faults.append(f"{sheet.relative_to(folder)}: loads {address}")
    return faults


def _check_page(
    path: Path, page: Page, pages: dict[Path, Page], root: Path | None
) -> Iterator[str]:
    """`root` is given for the one page that is shown at any address, whose links begin there."""
    if page.unnamed:
        yield f"{page.unnamed} pictures have no alternative text"
    for address in page.loaded:
        if address.startswith(_NETWORK):
            yield f"loads {address} from the network"
        elif not address.startswith("data:") and not _find(path, address, root).exists():
            yield f"loads {address}, which is not there"
    for address in page.links:
        parts = urlsplit(address)
        if parts.scheme or parts.netloc:
            if parts.scheme not in ("https", "mailto") or " " in address:
                yield f"links to {address}, which is not the form of a link"
            continue
        target = _find(path, parts.path, root) if parts.path else path
        if target.is_dir():
            target /= "index.html"
        if not target.exists():
            yield f"links to {address}, which is not there"
        elif parts.fragment and unquote(parts.fragment) not in (
            pages[target].anchors if target in pages else {unquote(parts.fragment)}
        ):
            yield f"links to {address}, but there is no such anchor"


def _find(page: Path, address: str, root: Path | None) -> Path:
    path = unquote(urlsplit(address).path)
    place = root / path.lstrip("/") if root is not None else page.parent / path
    return place.resolve()
