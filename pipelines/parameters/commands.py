"""What becomes part of paths, of names of stages and of commands, which a shell reads: names and values of the parameter file.

    python -P -m pipelines.parameters.commands

is the first command of each stage whose next one has anything of params.yaml in it: if this refuses, DVC does not start that.
"""

import re
import sys
from collections.abc import Iterator, Mapping
from datetime import date
from pathlib import Path
from typing import Any

from store.errors import BeyondClsError

NAME = re.compile(r"\w[\w.+-]{0,99}")
EXPECTED = "letters, digits, and . _ + - after the first one, 100 at most"
# Where there are names, as keys or in a list (`*`: in each entry), …
NAMED = (
    *("encoders", "datasets", "cls_heads", "heads", "own_heads", "by_block", "divergence", "composed", "composed_dense"),
    *("whole", "localised", "studies", "studies.*.heads", "block_studies", "block_studies.*.heads"),
    *("dense.datasets", "dense.segment", "dense.detect"),
)
# … and where an entry names others, which need not be in the file.
NAMING = ("studies", "block_studies", "by_block", "divergence", "whole", "localised", "composed_dense")
OTHERS = ("study", "dataset", "encoder", "joined", "features", "head", "photographs")
# In single quotes in dvc.yaml; all else there is a name.
QUOTED = (
    *("data", "dense.data", "composed.*.n_images", "composed.*.seed", "block_studies.*.stored"),
    *("composed_dense.*.train", "composed_dense.*.test", "composed_dense.*.seed"),
)


def check_all_names(params: Mapping[str, Any], file: Path) -> None:
    """Refuse names that could be something else, such as a path out of a folder or part of a command.

    Raises:
        BeyondClsError: there is one.
    """
    named = ((where, name) for place in NAMED for where, values in values_at(params, place) for name in _names(values))
    naming = (pair for place in NAMING for other in OTHERS for pair in values_at(params, f"{place}.*.{other}"))
    for where, name in (*named, *naming):
        if name is not None:
            check_name(f"{where} in {file}", name)


def check_name(where: str, name: object) -> None:
    """Refuse a name that could be something else.

    Raises:
        BeyondClsError: it could.
    """
    if not NAME.fullmatch(str(name)):
        raise BeyondClsError(
            f"{where} has the name {shown(name)}, which becomes part of paths and commands; expected {EXPECTED}; give it "
            "another name, there and where it is used"
        )


def values_at(params: Any, place: str) -> Iterator[tuple[str, Any]]:
    """Values at a place such as `studies.*.dataset`, where `*` is each entry of a section; and where each of them is."""
    first, _, rest = place.partition(".")
    for name, value in params.items() if isinstance(params, Mapping) else ():
        if first in ("*", name):
            below = values_at(value, rest) if rest else [("", value)]
            yield from ((f"{name}.{where}".rstrip("."), found) for where, found in below)


def shown(value: object) -> str:
    """A value of the file in a message, which may be long."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}…"


def _names(values: Any) -> list[Any]:
    return list(values) if isinstance(values, Mapping | list) else [values]


def check_commands(params: Mapping[str, Any]) -> None:
    """Refuse values that a shell would read as more than a value.

    Raises:
        BeyondClsError: there is one.
    """
    for place in QUOTED:
        for where, value in values_at(params, place):
            is_harmless = isinstance(value, str | int | float | date | None) and not re.search(r"[\x00-\x1f\x7f]", str(value))
            if not is_harmless or "'" in str(value):
                raise BeyondClsError(
                    f"{where} in the parameter file is {shown(value)}, which a shell would read as more than one value of a "
                    f"command in dvc.yaml; expected one line of text or a number, no quote; write it otherwise, or rename "
                    "the folder that it names"
                )


if __name__ == "__main__":
    from pipelines.parameters.params import read_params

    try:
        check_commands(read_params(Path("params.yaml")))
    except BeyondClsError as error:
        sys.exit(f"error: {error}")
