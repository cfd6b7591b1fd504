"""params.yaml: every value a user may change."""

import itertools
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from store import BeyondClsError
from store.errors import unknown

# Names become parts of paths, of names of stages, and of commands, and so can be nothing else.
NAME = re.compile(r"\w[\w.+-]{0,99}")
LETTERS = "letters, digits, and . _ + - after the first one, 100 at most"
# Where there are names, as keys or in a list (`*`: in each entry), …
NAMED = (
    *("encoders", "datasets", "cls_heads", "heads", "own_heads", "by_block", "divergence", "composed", "composed_dense"),
    *("whole", "localised"),
    *("few_shot", "geometry", "similarity", "norms", "scores", "correspondence", "retrieval", "tracking", "depth"),
    *("studies", "studies.*.heads", "block_studies", "block_studies.*.heads"),
    *("dense.datasets", "dense.segment", "dense.detect"),
)
# … and where an entry names others, which need not be in the file.
NAMING = (
    *("studies", "block_studies", "by_block", "divergence", "whole", "localised", "composed_dense"),
    *("few_shot", "geometry", "similarity", "norms", "scores", "correspondence", "retrieval", "tracking", "depth"),
)
OTHERS = ("study", "dataset", "encoder", "joined", "features", "head", "photographs", "test", "queries")
BYTES = 1 << 18  # of a file
NODES = 100_000  # values of a file, those that aliases stand for counted each time
LEVELS = 50  # of values in values
DIGITS = 100  # of a number


class _Loader(yaml.SafeLoader):
    """YAML with the numbers of version 1.2: PyYAML reads 1e-3 as a string. All keys are names, `on` and `2024` too.

    What would take ages or all memory to go through is an error, and so is a name that appears twice.
    """

    def get_single_node(self) -> yaml.Node | None:
        node = super().get_single_node()
        _measure(node, {})
        return node

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                key.tag = "tag:yaml.org,2002:str"
        super().flatten_mapping(node)
        # What is merged comes first. Of equal names the last one counts also where this is merged in turn, as DVC reads it.
        node.value = list(
            {key.value if isinstance(key, yaml.ScalarNode) else key: (key, value) for key, value in node.value}.values()
        )

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        if len(node.value) > DIGITS:
            raise yaml.MarkedYAMLError(None, None, f"a number of more than {DIGITS} digits", node.start_mark)
        return super().construct_yaml_int(node)


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)
_Loader.yaml_implicit_resolvers = {first: list(pairs) for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+"), list("-+.0123456789")
)


def from_yaml(text: str) -> Any:
    """The content of a YAML text.

    Raises:
        yaml.YAMLError: it is not YAML, or has more than any parameter file.
    """
    try:
        return yaml.load(text, _Loader)
    except RecursionError as error:
        raise yaml.YAMLError(f"more than {LEVELS} levels") from error
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:  # such as `!!int x`
        raise yaml.YAMLError(f"a value cannot be read ({error})") from error


def _measure(node: Any, measured: dict[Any, tuple[int, int] | None]) -> tuple[int, int]:
    """Values and levels of a node; None in `measured` is of a node that this one is in."""
    if node in measured:
        if (known := measured[node]) is None:
            raise yaml.MarkedYAMLError(None, None, "an alias stands for what it is in", node.start_mark)
        return known
    measured[node] = None
    pairs = node.value if isinstance(node, yaml.MappingNode) else ()
    for name, n in Counter(key.value for key, _ in pairs if isinstance(key, yaml.ScalarNode)).items():
        if n > 1 and name != "<<":
            raise yaml.MarkedYAMLError(None, None, f"{name!r} appears {n} times", node.start_mark)
    within = node.value if isinstance(node, yaml.SequenceNode) else itertools.chain.from_iterable(pairs)
    sizes = [_measure(inner, measured) for inner in within]
    size = 1 + sum(n for n, _ in sizes), 1 + max((levels for _, levels in sizes), default=0)
    if size[0] > NODES or size[1] > LEVELS:
        raise yaml.MarkedYAMLError(None, None, f"more than {NODES:,} values or {LEVELS} levels", node.start_mark)
    measured[node] = size
    return size


def read_params(path: Path) -> dict[str, Any]:
    """The file as nested dictionaries.

    Raises:
        BeyondClsError: it is missing or not a YAML mapping, or has a name that could be something else.
    """
    if not path.is_file():
        raise BeyondClsError(f"there is no parameter file {str(path)!r}; run in the folder of params.yaml, or give --params")
    with path.open("rb") as file:
        text = file.read(BYTES + 1)
    if len(text) > BYTES:
        raise BeyondClsError(f"{path} has more than {BYTES:,} bytes, expected a parameter file; name another with --params")
    try:
        content = from_yaml(text.decode("utf-8-sig"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise BeyondClsError(f"{path} is not YAML; correct it, or name another file: {error}") from error
    if not isinstance(content, dict):
        raise BeyondClsError(f"{path} holds {type(content).__name__}, expected sections (encoders, extract, heads, probe)")
    named = ((where, name) for place in NAMED for where, values in values_at(content, place) for name in _names(values))
    naming = (pair for place in NAMING for other in OTHERS for pair in values_at(content, f"{place}.*.{other}"))
    for where, name in (*named, *naming):
        if name is not None:
            check_name(f"{where} in {path}", name)
    return content


def _names(values: Any) -> list[Any]:
    return list(values) if isinstance(values, Mapping | list) else [values]


def check_name(where: str, name: object) -> None:
    """Refuse a name that could be something else, such as a path out of a folder or part of a command.

    Raises:
        BeyondClsError: it could.
    """
    if not NAME.fullmatch(str(name)):
        raise BeyondClsError(f"{where} has the name {shown(name)}, which becomes part of paths and commands; use {LETTERS}")


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


def section(params: Mapping[str, Any], name: str, entry: str | None = None) -> dict[str, Any]:
    """A section, or one entry of it; empty if the file has no such section.

    Raises:
        BeyondClsError: `entry` is not in the section, or either is not a mapping.
    """
    values = mapping(name, params.get(name))
    if entry is None:
        return values
    if entry not in values:
        kind = "study" if name in ("studies", "block_studies") else name.rstrip("s")
        raise BeyondClsError(unknown(kind, entry, values, f"Add it to {name} in the parameter file"))
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


def named_values(option: str, pairs: Sequence[str]) -> dict[str, Any]:
    """`depth=2` as {"depth": 2}; values are YAML.

    Raises:
        BeyondClsError: a pair that is not a name and a value; names the option.
    """
    values = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        try:
            values[name] = from_yaml(value)
        except yaml.YAMLError as error:
            raise BeyondClsError(f"{option} is {pair!r}, whose value is not YAML; expected e.g. blocks=[3,5]") from error
        if not equals or not name:
            raise BeyondClsError(f"{option} is {pair!r}, expected name=value, e.g. depth=2")
    return values


@dataclass(frozen=True)
class Primary:
    """The contrast that is declared before measuring: what a head reaches − what another one does, of one encoder."""

    encoder: str
    head: str
    over: str


def primary_of(params: Mapping[str, Any]) -> Primary | None:
    """`primary` of params.yaml; None if nothing was declared. Names that are not there are `beyondcls doctor`'s to find.

    Raises:
        BeyondClsError: it is no mapping of three names.
    """
    given = params.get("primary")
    if given is None:
        return None
    names = {"encoder", "head", "over"}
    if not isinstance(given, Mapping) or {*given} != names or not all(isinstance(name, str) for name in given.values()):
        example = "{ encoder: mae, head: abmilp, over: cls }"
        raise BeyondClsError(f"primary is {given!r}, expected an encoder and two heads of this file, e.g. {example}, or null")
    return Primary(**given)
