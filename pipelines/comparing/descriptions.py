"""What differs in how results were made: options, recipes, keys of feature sets, versions of packages, machines."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pipelines.report.reading import is_measure
from pipelines.report.rows import GROUPS, ResultFiles

LEFT_OUT = ("command", "notes", "seconds")  # of what else is said in other words; and times
FIRST = ("versions", "machine", "extraction", "features")  # what concerns many results


@dataclass(frozen=True)
class Difference:
    """A value that differs.

    Attributes:
        name: `recipe.epochs`.
        a, b: as JSON; None where it was not recorded.
        places: results in which it differs like this, as in ResultFiles.
    """

    name: str
    a: str | None
    b: str | None
    places: tuple[str, ...]


def differences_in_descriptions(a: ResultFiles, b: ResultFiles) -> list[Difference]:
    """Values that differ between results that both have, each with all results in which it does so."""
    places: dict[tuple[str, str | None, str | None], list[str]] = {}
    for place in sorted({*a} & {*b}):
        ours, theirs = (dict(_values(results[place].described)) for results in (a, b))
        for name in dict.fromkeys([*ours, *theirs]):
            if (values := (ours.get(name), theirs.get(name)))[0] != values[1]:
                places.setdefault((name, *values), []).append(place)
    found = [Difference(*values, tuple(where)) for values, where in places.items()]
    return sorted(found, key=lambda d: (*(d.name.partition(".")[0] != first for first in FIRST), d.name))


def _values(described: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Values as JSON by their dotted names, without measures, and without parts of what holds measures of several things."""
    for name, value in described.items():
        if name in LEFT_OUT or is_measure(value):
            continue
        if isinstance(value, Mapping) and value:
            yield from _values(value, f"{prefix}{name}.")
        elif not (isinstance(value, list) and name in GROUPS):
            yield f"{prefix}{name}", json.dumps(value, ensure_ascii=False)
