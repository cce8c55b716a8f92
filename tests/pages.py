"""Read an explorer page: its tags, and the data in it."""

import json
from html.parser import HTMLParser
from typing import Any


class Page(HTMLParser):
    """Tags with their attributes, and the scripts, of a page; complains of tags that do not match."""

    VOID = ("meta", "input", "br", "img", "link")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.scripts: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []
        self.data: dict[str, Any] = json.loads(self.scripts[0])

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] == ["script"]:
            self.scripts.append(data)
