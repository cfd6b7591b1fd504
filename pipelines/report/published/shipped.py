"""Published results by name: those that are shipped, and files of users."""

import csv
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from pipelines.report.published.row import COLUMNS, PublishedRow, read_rows
from store import BeyondClsError

# The paper's results with heads as rows, from tables of v2, and with its Table 5 from Table 3 of v1; names are those of the
# registries, and of heads as params.yaml has them. `table` is a further column.
PAPER = Path(__file__).parent / "paper.csv"
# The table and the logs of https://github.com/billpsomas/efficient-probing at commit b8f4fb84e812 (Psomas et al. 2025,
# arXiv 2506.10178): its numbers are those of the best epoch on the test images; of runs that trained for all 90 epochs the
# logs also have the last one's.
EFFICIENT_PROBING = Path(__file__).parent / "efficient_probing.csv"
TABLES = ("table-1", "table-5", "table-6", "table-7")


def paper_rows(*tables: str) -> tuple[PublishedRow, ...]:
    """Some of `TABLES`, all by default; a number that several tables print appears once, with the first of them."""
    first: dict[tuple[str, str, str, float], PublishedRow] = {}
    with PAPER.open(newline="", encoding="utf-8") as source:
        of_table = [line["table"] for line in csv.DictReader(source)]
    for table, row in zip(of_table, read_rows(PAPER), strict=True):
        if table in (tables or TABLES):
            first.setdefault((row.encoder, row.head, row.metric, row.value), row)
    return tuple(first.values())


# name -> rows
SHIPPED: dict[str, Callable[[], tuple[PublishedRow, ...]]] = {
    "paper": paper_rows,
    **{f"paper-{table}": partial(paper_rows, table) for table in TABLES},
    "efficient-probing": lambda: read_rows(EFFICIENT_PROBING),
}


def published_rows(names: Iterable[str]) -> dict[str, tuple[PublishedRow, ...]]:
    """Rows by name: of what is shipped under a name, else of a file; a file is called by its name without folders.

    Raises:
        BeyondClsError: neither is there, two are called alike, or a file is not as expected.
    """
    by_name: dict[str, tuple[PublishedRow, ...]] = {}
    for name in names:
        file = Path(name)
        shown = name if name in SHIPPED else file.name
        if shown in by_name:
            raise BeyondClsError(
                f"--against {name} has the name of another one, {shown!r}, expected each once; rename one of them"
            )
        if name not in SHIPPED and not file.is_file():
            raise BeyondClsError(
                f"there is no file {name!r}, expected a .csv file with the columns {', '.join(COLUMNS)}, or one of "
                f"{', '.join(SHIPPED)}; correct --against"
            )
        by_name[shown] = SHIPPED[name]() if name in SHIPPED else read_rows(file)
    return by_name
