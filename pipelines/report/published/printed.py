"""Tables of the paper as it prints them: NAME.csv next to this file, and a line about each in tables.csv.

The first line of NAME.csv names the columns, the second has their titles, with | where a rule precedes; rows follow. An
asterisk ends what is bold, an empty cell is a dash. `group` and `tag` are no columns, but a row's group and a word beside
its first cell.
"""

import csv
from pathlib import Path

from pipelines.report.content import Cell, Column, Kind, Row, Table
from pipelines.report.tables import NOTHING

BESIDE = {"group", "tag"}


def printed_table(name: str) -> Table:
    """A table by its name in tables.csv."""
    about = next(line for line in _read_lines("tables") if line["name"] == name)
    titles, *lines = _read_lines(name)
    names = [column for column in titles if column not in BESIDE]
    columns = []
    for column in names:
        numbers = [_parse_number(line[column]) for line in lines if line[column]]
        kind: Kind = "number" if numbers and None not in numbers else "text"
        columns.append(Column(column, titles[column].lstrip("|"), kind, apart=titles[column].startswith("|")))
    rows = []
    for line in lines:
        cells = [_cell(line[column], line.get("tag", "") if column == names[0] else "") for column in names]
        rows.append(Row(tuple(cells), line.get("group", "")))
    return Table(f"published-{name}", about["title"], about["note"], tuple(columns), tuple(rows), about["source"])


def _read_lines(name: str) -> list[dict[str, str]]:
    with (Path(__file__).parent / f"{name}.csv").open(newline="", encoding="utf-8") as source:
        return list(csv.DictReader(source))


def _cell(printed: str, tag: str) -> Cell:
    if not printed:
        return NOTHING
    text, number = printed.rstrip("*"), _parse_number(printed)
    if number is None:
        return Cell(text, text, tag=tag)
    return Cell(text.replace("-", "−"), number, best=printed.endswith("*"), tag=tag)


def _parse_number(printed: str) -> float | None:
    try:
        return float(printed.rstrip("*"))
    except ValueError:
        return None
