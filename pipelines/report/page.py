"""The page: one HTML file that needs no network, and reads without its script."""

import base64
import hashlib
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

import jinja2

from pipelines.report.content import Cell, Column, Row, Section
from pipelines.report.formats import FORMATS
from pipelines.report.galleries.pictures import files_of, uri
from pipelines.report.results import FILE
from pipelines.report.sections.provenance import versions
from pipelines.report.tables import title


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
        "grouped": _group_rows,
        "files_of": files_of,
        "uri": uri,
        "sort_value": _sort_value,
    }
    script = (Path(__file__).parent / "page.js").read_text(encoding="utf-8")
    return environment.get_template("page.html.jinja").render(
        sections=sections,
        reload_s=reload_s,
        script=script,
        script_hash=_script_hash(script),
        suffixes=tuple(FORMATS),
        results=FILE,
        version=versions()["beyondcls"],
    )


def _script_hash(script: str) -> str:
    """What the page's policy allows to run: this script and no other."""
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")


def _group_rows(rows: Sequence[Row]) -> list[tuple[str, list[Row]]]:
    return [(group, list(members)) for group, members in groupby(rows, lambda row: row.group)]


def _sort_value(cell: Cell, column: Column) -> str:
    """What a column is sorted by; empty without a value."""
    if cell.value is not None:
        return f"{cell.value:.6g}" if isinstance(cell.value, float) else str(cell.value)
    return cell.text if column.kind == "text" and cell.text != "–" else ""
