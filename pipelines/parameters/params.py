"""params.yaml: every value a user may change."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml

from store import BeyondClsError
from store.errors import unknown


class _Loader(yaml.SafeLoader):
    """YAML with the numbers of version 1.2: PyYAML reads 1e-3 as a string. All keys are names, `on` and `2024` too."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                key.tag = "tag:yaml.org,2002:str"
        return super().construct_mapping(node, deep)


_Loader.yaml_implicit_resolvers = {first: list(pairs) for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+"), list("-+.0123456789")
)


def from_yaml(text: str) -> Any:
    """The content of a YAML text.

    Raises:
        yaml.YAMLError: it is not YAML.
    """
    return yaml.load(text, _Loader)


T = TypeVar("T")
TYPES: dict[type, tuple[tuple[type, ...], str]] = {
    int: ((int,), "a whole number"),
    float: ((int, float), "a number"),
    str: ((str,), "a name"),
    bool: ((bool,), "true or false"),
}
SINGULAR = {"studies": "study", "block_studies": "study"}  # of sections' names; others lose their s


def read_params(path: Path) -> dict[str, Any]:
    """The file as nested dictionaries.

    Raises:
        BeyondClsError: it is missing or not a YAML mapping.
    """
    if not path.is_file():
        raise BeyondClsError(
            f"there is no parameter file {str(path)!r}; run in the folder of params.yaml, or name it with --params"
        )
    try:
        content = from_yaml(path.read_text(encoding="utf-8-sig"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise BeyondClsError(f"{path} is not YAML: {error}") from error
    if not isinstance(content, dict):
        raise BeyondClsError(f"{path} holds {type(content).__name__}, expected sections (encoders, extract, heads, probe)")
    return content


def section(params: Mapping[str, Any], name: str, entry: str | None = None) -> dict[str, Any]:
    """A section, or one entry of it; empty if the file has no such section.

    Raises:
        BeyondClsError: `entry` is not in the section, or either is not a mapping.
    """
    values = mapping(name, params.get(name))
    if entry is None:
        return values
    if entry not in values:
        raise BeyondClsError(
            unknown(SINGULAR.get(name, name.rstrip("s")), entry, values, f"Add it to {name} in the parameter file")
        )
    return mapping(f"{name}.{entry}", values[entry])


def mapping(where: str, values: Any) -> dict[str, Any]:
    """Names and values of a part of the parameter file.

    Raises:
        BeyondClsError: the value at `where` is not a mapping.
    """
    if values is not None and not isinstance(values, Mapping):
        raise BeyondClsError(f"{where} in the parameter file is {values!r}, expected names and values, e.g. {{epochs: 90}}")
    return dict(values or {})


def without_none(**values: Any) -> dict[str, Any]:
    """The values that are not None: options that were given on the command line."""
    return {name: value for name, value in values.items() if value is not None}


def check_names(where: str, values: Mapping[str, Any], known: list[str]) -> None:
    """Refuse parameters that nothing reads.

    Raises:
        BeyondClsError: a parameter that nothing reads; suggests the nearest one that is read.
    """
    for name in values:
        if name not in known:
            raise BeyondClsError(unknown(f"parameter in {where}", name, known))


def check_type(where: str, value: Any, expected: type) -> None:
    """Refuse a value of another type.

    Args:
        where: name of the parameter, and where it was given.

    Raises:
        BeyondClsError: a value of another type.
    """
    if expected not in TYPES:
        return
    types, words = TYPES[expected]
    if not isinstance(value, types) or (expected is not bool and isinstance(value, bool)):
        raise BeyondClsError(f"{where} is {value!r}, expected {words}")


def integers(option: str, text: str) -> tuple[int, ...]:
    """`3,-1` as (3, -1).

    Raises:
        BeyondClsError: names the option.
    """
    return _listed(option, text, int, "integers with commas, e.g. 3,-1")


def numbers(option: str, text: str) -> tuple[float, ...]:
    """`0.01,0.1` as (0.01, 0.1).

    Raises:
        BeyondClsError: names the option.
    """
    return _listed(option, text, float, "numbers with commas, e.g. 0.01,0.1")


def number_or_numbers(option: str, text: str) -> float | tuple[float, ...]:
    """As `numbers`; a single one by itself.

    Raises:
        BeyondClsError: names the option.
    """
    values = numbers(option, text)
    return values if len(values) > 1 else values[0]


def _listed(option: str, text: str, convert: Callable[[str], T], expected: str) -> tuple[T, ...]:
    try:
        return tuple(convert(part) for part in text.split(","))
    except ValueError as error:
        raise BeyondClsError(f"{option} is {text!r}, expected {expected}") from error
