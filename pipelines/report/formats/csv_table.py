"""A table as CSV: values in full precision, missing ones empty."""

import csv
import io

from pipelines.report.content import Cell, Column, Table
from store.shown import csv_cell

NOTHING = ("", "–")  # as it is shown


def to_csv(table: Table) -> str:
    """A line per row; a column of kind "spread" gives two, NAME and NAME_std; `group` comes first where rows have one."""
    grouped = any(row.group for row in table.rows)
    target = io.StringIO()
    writer = csv.writer(target, lineterminator="\n")
    writer.writerow((["group"] if grouped else []) + [name for column in table.columns for name in _column_names(column)])
    for row in table.rows:
        values = [value for column, cell in zip(table.columns, row.cells, strict=True) for value in _cell_values(column, cell)]
        writer.writerow(map(csv_cell, ([row.group] if grouped else []) + values))
    return target.getvalue()


def _column_names(column: Column) -> list[str]:
    return [column.name, f"{column.name}_std"] if column.kind == "spread" else [column.name]


def _cell_values(column: Column, cell: Cell) -> list[str]:
    if column.kind == "text":
        shown = "" if cell.text in NOTHING else cell.text
        return [shown if cell.value is None else str(cell.value)]
    mean = "" if cell.value is None else str(cell.value)
    return [mean, "" if cell.std is None else str(cell.std)] if column.kind == "spread" else [mean]
