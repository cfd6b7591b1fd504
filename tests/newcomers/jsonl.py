"""A table as JSON, a row on each line."""

import json
from typing import Any

from pipelines.report.content import Cell, Column, Table


def to_jsonl(table: Table) -> str:
    """Values in full precision, by the names of their columns; `group` comes first."""
    rows = ({"group": row.group} | _values(table.columns, row.cells) for row in table.rows)
    return "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows)


def _values(columns: tuple[Column, ...], cells: tuple[Cell, ...]) -> dict[str, Any]:
    """A spread is a list: mean, standard deviation."""
    return {
        column.name: cell.text if column.kind == "text" else [cell.value, cell.std] if column.kind == "spread" else cell.value
        for column, cell in zip(columns, cells, strict=True)
    }
