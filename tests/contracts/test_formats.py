"""What holds for every form of the report's tables."""

import re
from dataclasses import replace

import pytest

from pipelines.report.content import Cell, Column, Row, Table
from pipelines.report.formats import FORMATS

EVIL = 'a|b & 50 % <i> _x_ #1 $y$ {z} \\ [w] ~ ^ "q", `r`; \t–'
TABLE = Table(
    "a-table",
    "A title",
    "What it is.",
    (Column("name", "Name", "text"), Column("top", "Top", "spread", apart=True), Column("n", "Images")),
    (
        Row((Cell("plain", "plain"), Cell("1.25 ± 0.5", 1.25, 0.5, best=True), Cell("3", 3)), "one"),
        Row((Cell("[cls]", tag="twin"), Cell("–"), Cell("–")), "one"),
        Row((Cell("third"), Cell("2.0", 2.0), Cell("47", 47)), "two"),
    ),
)


def with_cell(row: int, column: int, cell: Cell) -> Table:
    rows = list(TABLE.rows)
    cells = list(rows[row].cells)
    cells[column] = cell
    rows[row] = replace(rows[row], cells=tuple(cells))
    return replace(TABLE, rows=tuple(rows))


@pytest.mark.parametrize("suffix", FORMATS)
class TestEveryForm:
    def test_ends_with_one_line_break(self, suffix):
        text = FORMATS[suffix](TABLE)
        assert text == FORMATS[suffix](TABLE)
        assert text.endswith("\n")
        assert not text.endswith("\n\n")
        assert re.fullmatch("[a-z0-9]+", suffix), "the end of a file's name"

    def test_says_all_that_the_table_does(self, suffix):
        text = FORMATS[suffix](TABLE)
        for column, word in ((0, "plain"), (0, "third"), (1, "1.25"), (1, "2.0"), (1, "0.5"), (2, "3"), (2, "47")):
            assert word in text, column
        for column in TABLE.columns:
            assert column.name in text or column.title in text
        for group in ("one", "two"):
            assert group in text

    @pytest.mark.parametrize(("row", "column"), [(0, 0), (1, 1), (2, 2)])
    def test_no_two_cells_are_confused(self, suffix, row, column):
        other = Cell("other", "other") if column == 0 else Cell("8.75", 8.75)
        lines, changed = (FORMATS[suffix](t).splitlines() for t in (TABLE, with_cell(row, column, other)))
        assert len(lines) == len(changed)
        (line,) = (new for old, new in zip(lines, changed, strict=True) if old != new)
        assert other.text in line

    def test_what_is_written_in_a_cell_does_not_end_it(self, suffix):
        """Signs that mean something in one form or another, in a cell, are no part of the form."""
        plain, evil = (FORMATS[suffix](with_cell(0, 0, Cell(text, text))).splitlines() for text in ("plain", EVIL))
        assert len(evil) == len(plain)
        (at,) = (number for number, line in enumerate(plain) if "plain" in line)
        before, behind = plain[at].split("plain")
        assert evil[at].lstrip('"').startswith(before)
        assert evil[at].endswith(behind)
        assert evil[:at] + evil[at + 1 :] == plain[:at] + plain[at + 1 :]

    def test_takes_no_line_for_another(self, suffix):
        rows = [FORMATS[suffix](replace(TABLE, rows=TABLE.rows[:n])) for n in range(4)]
        assert len(set(rows)) == 4
        assert sorted(rows, key=len) == rows
