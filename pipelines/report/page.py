"""The page: one HTML file that needs no network, and reads without its script."""

import base64
import hashlib
import re
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path

import jinja2

from pipelines.report.content import Cell, Column, Figures, Row, Section
from pipelines.report.drawing import TAG
from pipelines.report.formats import FORMATS
from pipelines.report.galleries.pictures import files_of, uri
from pipelines.report.results import FILE
from pipelines.report.sections.provenance import versions
from pipelines.report.tables import title

STYLE = re.compile(r' style="([^"]*)"')
OF_ALL = re.compile(r"<defs><style[^>]*>[^<]*</style></defs>")  # joins and ends of lines, which page.css has for all plots


def render(sections: Sequence[Section], reload_s: float | None = None) -> str:
    """The page as text. The template escapes all but our style sheet, our script, and plots (matplotlib escapes their text).

    Args:
        reload_s: seconds after which the page loads itself again; never by default.
    """
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("pipelines.report", "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "title": title,
        "kind": lambda block: type(block).__name__,
        "grouped": _grouped,
        "files_of": files_of,
        "uri": uri,
        "place": _place,
        "sort_value": _sort_value,
    }
    plots = [f for section in sections for b in section.blocks if isinstance(b, Figures) for f in b.figures]
    svgs, plot_styles = _by_class(figure.svg for figure in plots)
    script = (Path(__file__).parent / "page.js").read_text(encoding="utf-8")
    return environment.get_template("page.html.jinja").render(
        sections=sections,
        reload_s=reload_s,
        svgs={figure.name: svg for figure, svg in zip(plots, svgs, strict=True)},
        plot_styles=plot_styles,
        script=script,
        script_hash=_hash(script),
        suffixes=tuple(FORMATS),
        results=FILE,
        version=versions()["beyondcls"],
    )


def _hash(script: str) -> str:
    """What the page's policy allows to run: this script and no other."""
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")


def _grouped(rows: Sequence[Row]) -> list[tuple[str, list[Row]]]:
    return [(group, list(members)) for group, members in groupby(rows, lambda row: row.group)]


def _place(value: float, ticks: Sequence[float]) -> str:
    """Where a value is on an axis from the first tick to the last, percent."""
    return f"{100 * (value - ticks[0]) / (ticks[-1] - ticks[0]):.2f}"


def _sort_value(cell: Cell, column: Column) -> str:
    """What a column is sorted by; empty without a value."""
    if cell.value is not None:
        return str(cell.value)
    return cell.text if column.kind == "text" and cell.text != "–" else ""


def _by_class(svgs: Iterable[str]) -> tuple[list[str], str]:
    """Inline plots with a class in place of each style, which is most of an SVG's bytes, and their style sheet."""
    names: dict[str, str] = {}

    def named(style: re.Match[str]) -> str:
        return f' class="{names.setdefault(style[1], f"s{len(names)}")}"'

    shortened = [TAG.sub(lambda tag: STYLE.sub(named, tag[0]), OF_ALL.sub("", svg)) for svg in svgs]
    return shortened, "\n".join(f".{name} {{ {style} }}" for style, name in names.items())
