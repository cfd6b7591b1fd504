"""A table for the terminal."""

from rich.table import Table as Shown
from rich.text import Text

from pipelines.report.content import Table


def to_terminal(table: Table) -> Shown:
    """For rich. Names are plain text: `[cls]` is not markup."""
    shown = Shown(title=Text(table.title), title_justify="left", title_style="bold")
    for column in table.columns:
        if column.kind == "text":
            shown.add_column(Text(column.title), overflow="fold", min_width=12)
        else:
            shown.add_column(Text(column.title), justify="right", no_wrap=True)
    for row in table.rows:
        cells = [Text(cell.text + (f" ({cell.tag})" if cell.tag else ""), "bold" if cell.best else "") for cell in row.cells]
        shown.add_row(*cells)
    return shown
