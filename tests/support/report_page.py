"""A report page taken apart, to be asserted on."""

from __future__ import annotations

from html.parser import HTMLParser


class Page(HTMLParser):
    """What a page is made of."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.sections: set[str] = set()
        self.numbers: dict[tuple[str, str], str] = {}
        self.texts: dict[str, str] = {}
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {key: value or "" for key, value in attrs}
        self.tags.append(tag)
        self.attributes += found.items()
        if tag == "section":
            self.sections.add(found["id"])
        if "data-value" in found:
            place = (found["data-method"], found["data-score"])
            self.numbers[place] = found["data-value"]

    def handle_data(self, data: str) -> None:
        tag = self.tags[-1] if self.tags else ""
        self.texts[tag] = self.texts.get(tag, "") + data

    def values(self, attribute: str) -> list[str]:
        return [value for key, value in self.attributes if key == attribute]
