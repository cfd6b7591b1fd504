"""A table in Markdown, as GitHub shows it."""

from itertools import groupby

from pipelines.report.content import Cell, Table

SPECIAL = "\\`*_[]<>|&#~$"  # a backslash before any of them makes it plain


def to_markdown(table: Table) -> str:
    """Title, table, note; the best in bold, the name of a group in a separate line."""
    marks = " | ".join("---" if column.kind == "text" else "---:" for column in table.columns)
    lines = [f"### {escaped(table.title)}", "", _line([escaped(column.title) for column in table.columns]), f"| {marks} |"]
    for group, rows in groupby(table.rows, lambda row: row.group):
        if group:
            lines.append(_line([f"**{escaped(group)}**"] + [""] * (len(table.columns) - 1)))
        lines += [_line([_cell(cell) for cell in row.cells]) for row in rows]
    if note := table.note + (f" Source: {table.published}." if table.published else ""):
        lines += ["", escaped(note)]
    return "\n".join(lines) + "\n"


def escaped(text: str) -> str:
    """Text that Markdown shows literally, in one line."""
    return "".join(f"\\{sign}" if sign in SPECIAL else sign for sign in text.replace("\n", " "))


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _cell(cell: Cell) -> str:
    text = escaped(cell.text + (f" ({cell.tag})" if cell.tag else ""))
    return f"**{text}**" if cell.best else text
