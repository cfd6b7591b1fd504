"""A page as a browser would take it apart."""

import re
from html.parser import HTMLParser

from pipelines.report.formats import FORMATS

BESIDE = rf"(tables|figures)/[a-z0-9-]+\.({'|'.join([*FORMATS, 'svg', 'png', 'pdf'])})"  # files that the page offers
VOID = {"col", "meta", "img", "br", "link", "input", "hr", "wbr"}


class Page(HTMLParser):
    """Elements with their attributes, and texts. Elements that are closed in another order are an AssertionError."""

    def __init__(self, text: str):
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> closes another element"

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def check_page(text: str) -> Page:
    """Elements are closed, ids are unique, nothing is loaded from anywhere, and no script but one of the page's own runs."""
    page = Page(text)
    assert page.open == []
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert [tag for tag, _ in page.tags].count("script") == 1
    for tag, attributes in page.tags:
        assert tag not in ("link", "iframe", "object", "embed", "base")
        for name, value in attributes.items():
            assert not name.startswith("on"), f"{tag} has a handler {name}"
            if name in ("src", "href", "xlink:href", "srcset", "action", "data"):
                embedded = str(value).startswith(("#", "data:image/png;base64,", "data:image/webp;base64,"))
                beside = tag == "a" and re.fullmatch(BESIDE, str(value))
                assert embedded or beside, f"{tag} loads {str(value)[:60]}"
    for what in ("http://", "https://", "@import"):
        assert what not in text
    assert not re.search(r"url\((?!#)", text)
    assert "default-src 'none'" in text
    return page
