"""Objects as small tables, for notebooks. All text is escaped: names of files and classes are data."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape


def html_table(title: str, lines: Mapping[str, object]) -> str:
    """A title, and a line with name and value for each entry."""
    return _table(title, "".join(f"<tr>{_cell('th', name)}{_cell('td', value)}</tr>" for name, value in lines.items()))


def html_rows(title: str, header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A title, and a table with a header."""
    lines = [("th", header), *(("td", row) for row in rows)]
    return _table(title, "".join(f"<tr>{''.join(_cell(kind, value) for value in line)}</tr>" for kind, line in lines))


def first_names(names: object, n: int = 5) -> str:
    """`10: airplane, automobile, bird, cat, deer, …`; a dash without names."""
    listed = [str(name) for name in names] if isinstance(names, list | tuple) else []
    return f"{len(listed)}: {', '.join(listed[:n])}{', …' * (len(listed) > n)}" if listed else "–"


def _table(title: str, lines: str) -> str:
    return f"<div><strong>{escape(title)}</strong><table>{lines}</table></div>"


def _cell(kind: str, value: object) -> str:
    return f'<{kind} style="text-align: left">{escape(str(value))}</{kind}>'
