"""A row of a file of published results (`beyondcls report --against`), and such files."""

import csv
import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
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
            rows = tuple(_row(f"{file}, line {reader.line_num}", cells) for cells in reader)
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


def _row(place: str, cells: Mapping[Any, Any]) -> PublishedRow:
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
