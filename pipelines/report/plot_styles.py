"""The looks of all plots of a page once: what SVG repeats at every mark is most of its bytes."""

import re
from collections.abc import Iterable

from pipelines.report.drawing import TAG

STYLE = re.compile(r' style="([^"]*)"')
OF_ALL = re.compile(r"<defs><style[^>]*>[^<]*</style></defs>")  # joins and ends of lines, which page.css has for all plots


def by_class(svgs: Iterable[str]) -> tuple[list[str], str]:
    """Inline plots with a class in place of each style, and the style sheet of these classes."""
    names: dict[str, str] = {}

    def named(style: re.Match[str]) -> str:
        return f' class="{names.setdefault(style[1], f"s{len(names)}")}"'

    shortened = [TAG.sub(lambda tag: STYLE.sub(named, tag[0]), OF_ALL.sub("", svg)) for svg in svgs]
    return shortened, "\n".join(f".{name} {{ {style} }}" for style, name in names.items())
