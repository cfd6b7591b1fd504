"""params.yaml: every value a user may change."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from store import BeyondClsError
from store.errors import unknown


def read_params(path: Path) -> dict[str, Any]:
    """The file as nested dictionaries.

    Raises: BeyondClsError: it is missing or no YAML mapping.
    """
    if not path.is_file():
        raise BeyondClsError(
            f"there is no parameter file {str(path)!r}; run in the folder of params.yaml, or name it with --params"
        )
    try:
        content = yaml.safe_load(path.read_text())
    except yaml.YAMLError as error:
        raise BeyondClsError(f"{path} is not YAML: {error}") from error
    if not isinstance(content, dict):
        raise BeyondClsError(f"{path} holds {type(content).__name__}, expected sections (encoders, extract, heads, probe)")
    return content


def section(params: Mapping[str, Any], name: str, entry: str | None = None) -> dict[str, Any]:
    """A section, or one entry of it; empty where the file says nothing.

    Raises: BeyondClsError: `entry` is not in the section.
    """
    values = params.get(name) or {}
    if entry is None:
        return dict(values)
    if entry not in values:
        raise BeyondClsError(unknown(name.rstrip("s"), entry, values, f"Add it to {name} in the parameter file"))
    return dict(values[entry] or {})


def given(**values: Any) -> dict[str, Any]:
    """What was given on the command line: the values that are not None."""
    return {name: value for name, value in values.items() if value is not None}


def check_names(where: str, values: Mapping[str, Any], known: list[str]) -> None:
    """Raises: BeyondClsError: a parameter that nothing reads, with the nearest that is read."""
    for name in values:
        if name not in known:
            raise BeyondClsError(unknown(f"parameter in {where}", name, known))


def integers(option: str, text: str) -> tuple[int, ...]:
    """`3,-1` as (3, -1).

    Raises: BeyondClsError: names the option.
    """
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise BeyondClsError(f"{option} is {text!r}, expected integers with commas, e.g. 3,-1") from error
