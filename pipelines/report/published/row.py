"""Published results as rows (`beyondcls report --against`): those that are shipped under a name, and files of users."""

import csv
import difflib
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

from store import BeyondClsError


@dataclass(frozen=True)
class PublishedRow:
    """One published number.

    Attributes:
        encoder: as the registry or timm names it; any name that a project gives to its encoder.
        dataset: as the registry names it, or a project.
        head: an aggregator, or a name under `heads` in params.yaml.
        protocol: how the head was trained: a preset, or a protocol without gradient steps (logistic, knn, ridge); or in words,
            which no training of ours is known to follow.
        metric: as metrics.json names it (top1, top5, map, entropy, …); `top1_best_epoch` or `map_best_epoch` where the epoch
            was chosen on the test images.
        value: percent, or nats of an entropy.
        source: where it was published.
        note: what a reader should know.
        aggregator: of the head, where the head is not called by it.
        options: of the aggregator, or of a protocol without gradient steps: "heads=12", "k=20 temperature=0.07".
        epochs: of training, where there were more or fewer than the preset has.
        crops: "fresh", in each epoch; "stored", a number of them; or "none": the view that is evaluated.
        n_training: images that the head was trained on.
        resolution: of the images that the encoder saw, a side in pixels.
        frame: how they were cut out: crop_mode and crop_pct, "center 0.875".
        block: whose tokens were read, from 0.

    What is empty was not stated, and is not compared.
    """

    encoder: str
    dataset: str
    head: str
    protocol: str
    metric: str
    value: float
    source: str
    note: str = ""
    aggregator: str = ""
    options: str = ""
    epochs: str = ""
    crops: str = ""
    n_training: str = ""
    resolution: str = ""
    frame: str = ""
    block: str = ""


STATED = tuple(field.name for field in fields(PublishedRow))[8:]  # columns that a file may lack
COLUMNS = tuple(field.name for field in fields(PublishedRow) if field.name not in STATED)
WHOLE = ("epochs", "n_training", "resolution")  # whole numbers
REQUIRED = ("encoder", "dataset", "head", "metric", "value")  # cells that may not be empty


def read_rows(file: Path) -> tuple[PublishedRow, ...]:
    """The rows of a .csv file with these columns, in any order, and maybe those of `STATED`; further ones are left alone.

    Raises:
        BeyondClsError: the file is not UTF-8 text, lacks a column, or has no rows; or a row lacks a cell, has one too many,
            or has a value that is not a number.
    """
    try:
        with file.open(newline="", encoding="utf-8-sig") as source:
            reader = csv.DictReader(source, strict=True)
            _check_columns(file, list(reader.fieldnames or ()))
            rows = tuple(_parse_row(f"{file}, line {reader.line_num}", cells) for cells in reader)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BeyondClsError(f"{file} is not a readable .csv file ({error}), expected UTF-8 text; save it again") from error
    if not rows:
        raise BeyondClsError(f"{file} has no rows below its columns, expected one for each published number; add some")
    return rows


def _check_columns(file: Path, names: list[str]) -> None:
    for name in COLUMNS:
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            meant = f"did you mean it by {near[0]!r}? " if near else ""
            raise BeyondClsError(
                f"{file}, line 1: there is no column {name!r} among {', '.join(names) or 'none'}; {meant}"
                f"expected {', '.join(COLUMNS)}"
            )


def _parse_row(place: str, cells: Mapping[Any, Any]) -> PublishedRow:
    """One row; `place` is its file and line."""
    if None in cells or None in cells.values():
        n = sum(value is not None for name, value in cells.items() if name is not None) + len(cells.get(None, ()))
        n_columns = sum(name is not None for name in cells)
        raise BeyondClsError(f"{place} has {n} cells, expected {n_columns}; put text with commas in quotation marks")
    stripped = {name: str(cells.get(name, "")).strip() for name in (*COLUMNS, *STATED)}
    for name in REQUIRED:
        if not stripped[name]:
            raise BeyondClsError(
                f"{place}: {name} is empty, expected {'a number' if name == 'value' else 'a name'}; fill it in"
            )
    for name in WHOLE:
        if stripped[name] and not stripped[name].isdecimal():
            raise BeyondClsError(f"{place}: {name} is {stripped[name]!r}, expected a whole number such as 90; correct it")
    if (pair := next((pair for pair in stripped["options"].split() if "=" not in pair), None)) is not None:
        raise BeyondClsError(f"{place}: options have {pair!r}, expected NAME=VALUE, such as heads=12, with blanks between them")
    try:
        value = float(stripped["value"])
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise BeyondClsError(f"{place}: value is {stripped['value']!r}, expected a number such as 71.6; correct it")
    return PublishedRow(**{**stripped, "value": value})  # type: ignore[arg-type]


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
