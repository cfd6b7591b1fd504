"""Feature sets in an object store that are still being written: what their writers keep beside the arrays until then."""

import json
import math
from typing import Any

from store.places.place import Place

WRITING = ".writing"  # folder in the set; removed when the set is whole, and no part of it
HEADER = f"{WRITING}/header.json"
RECORDS = f"{WRITING}/units"
CLAIMS = f"{WRITING}/claims"


def record_name(unit: int) -> str:
    """The file that says that a unit is written."""
    return f"{RECORDS}/{unit}.json"


def is_of_writers(name: str) -> bool:
    """Whether a file, by its path in the set, is kept by writers and no part of the set."""
    return name.startswith(f"{WRITING}/")


def n_units_of(header: dict[str, Any]) -> int:
    """Units of a set, from the header of its writers."""
    shape, _, shard_rows, _ = next(iter(header["arrays"].values()))
    return math.ceil(shape[0] / shard_rows)


def progress_at(place: Place) -> tuple[int, int] | None:
    """Units that are written, and all, of a set that is being written; None where none is, or its header makes no sense."""
    if (content := place.content(HEADER)) is None:
        return None
    try:
        n_units = n_units_of(json.loads(content))
        return sum(place.size(record_name(unit)) is not None for unit in range(n_units)), n_units
    except (ValueError, KeyError, TypeError, AttributeError, StopIteration, ArithmeticError, RecursionError):
        return None
