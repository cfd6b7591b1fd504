"""What people are shown: texts without secrets of addresses or control characters, small tables of notebooks, progress."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from html import escape
from typing import Any

BLANK = "***"
# What follows ://, up to the end of the address: user and password, host and path, query; in linear time, whatever it is.
_REST = re.compile(r"([^\s/?#'\"<>]*@)?([^\s?#'\"<>]*)((?:[?#][^\s'\"<>]*)?)")
_PART = re.compile(r"([?#&;])([^=&;#?]*)(=?)[^&;#?]*")
_AUTHORIZATION = re.compile(r"(?i)\b(authorization\s*[:=]\s*)(?:(?:basic|bearer|token)\s+)?[^\s'\"]+")
# Control characters but tab and line feed; those of C1; and what changes the direction of text, or begins a line or paragraph.
_STEERING = [*range(9), *range(11, 32), *range(127, 160), 0x61C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A)]
_ESCAPES = {code: chr(code).encode("unicode_escape").decode() for code in _STEERING}
_FORMULA = re.compile(r"'*[=+\-@\t\r\n＝＋－＠].")  # also those of full width, which some spreadsheets take for them
# (what, total, unit) to a context that gives a function to report progress by; `beyondcls.progress_bar` is one.
Bars = Callable[[str, int, str], AbstractContextManager[Callable[[int], None]]]


def redacted(text: str) -> str:
    """A text without passwords, their users, and values of queries (signatures, tokens) of the addresses in it."""
    before, *rests = text.split("://")
    parts, is_query = [before], False
    for rest in rests:
        matched = _REST.match(rest)
        assert matched is not None
        user, path, query = matched.groups(default="")
        is_http = before.lower().endswith(("http", "https"))
        if user and (is_http or ":" in user):  # abfss://container@account has no secret
            user = f"{BLANK}@"
        # An address in the query of another is part of a value.
        kept = BLANK if is_query else f"{user}{path}{_hide_values(query, is_http)}"
        parts.append(kept + rest[matched.end() :])
        is_query, before = (is_query or bool(query)) and matched.end() == len(rest), rest
    return _AUTHORIZATION.sub(rf"\1{BLANK}", "://".join(parts))


def _hide_values(query: str, is_http: bool) -> str:
    """Names stay; a value without one is a secret over HTTP alone: elsewhere ? is part of a pattern, and # of a name."""

    def blanked(part: re.Match[str]) -> str:
        begin, name, equals = part.groups()
        is_secret = is_http and begin != "#" and bool(name)
        return f"{begin}{name}={BLANK}" if equals else f"{begin}{BLANK}" if is_secret else part[0]

    address = query.rstrip(".,;:)]}")  # the rest is of the sentence
    return _PART.sub(blanked, address) + query[len(address) :]


def escaped(text: str) -> str:
    r"""A text whose control characters are shown (`\x1b`) and steer no terminal; tabs and line feeds stay."""
    return text.translate(_ESCAPES)


def shown(text: str) -> str:
    """A text for people: redacted and escaped."""
    return escaped(redacted(text))


def csv_cell(value: Any) -> Any:
    """A value for a .csv: a text that a spreadsheet would compute gets an apostrophe in front; numbers stay."""
    return f"'{value}" if isinstance(value, str) and _FORMULA.match(value) and not _is_number(value) else value


def from_csv_cell(cell: str) -> str:
    """The text that `csv_cell` was given."""
    return cell[1:] if cell.startswith("'") and _FORMULA.match(cell) else cell


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return text.isascii() and text.isprintable()


def html_table(title: str, lines: Mapping[str, object]) -> str:
    """A title, and a line with name and value for each entry."""
    return _table(title, ([("th", name), ("td", value)] for name, value in lines.items()))


def html_rows(title: str, header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A title, and a table with a header."""
    return _table(title, ([(kind, value) for value in line] for kind, line in [("th", header), *(("td", row) for row in rows)]))


def first_names(names: object, n: int = 5) -> str:
    """`10: airplane, automobile, bird, cat, deer, …`; a dash without names."""
    listed = [str(name) for name in names] if isinstance(names, list | tuple) else []
    return f"{len(listed)}: {', '.join(listed[:n])}{', …' * (len(listed) > n)}" if listed else "–"


def _table(title: str, lines: Iterable[Iterable[tuple[str, object]]]) -> str:
    cells = (
        "".join(f'<{kind} style="text-align: left">{escape(str(value))}</{kind}>' for kind, value in line) for line in lines
    )
    return f"<div><strong>{escape(title)}</strong><table>{''.join(f'<tr>{line}</tr>' for line in cells)}</table></div>"


def no_bars(what: str, total: int, unit: str) -> AbstractContextManager[Callable[[int], None]]:
    """Show nothing."""
    return nullcontext(lambda n: None)
