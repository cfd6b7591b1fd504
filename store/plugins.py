"""Registries: entries of this program, and those that installed packages declare as entry points.

    [project.entry-points."beyondcls.aggregators"]
    gem = "beyondcls_gem:GeM"

A package is found by its metadata; its code is imported when one of its entries is first used. Only what is declared can be
looked up: a name in a feature set or in a probe never imports anything else. Format: the specification of entry points,
https://packaging.python.org/en/latest/specifications/entry-points/
"""

import hashlib
import importlib.util
import re
import sys
import warnings
from collections.abc import Callable, ItemsView, Iterator, Mapping, MutableMapping, ValuesView
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Generic, TypeVar

from store.errors import BeyondClsError, BeyondClsWarning, first_line, unknown

T = TypeVar("T")
PREFIX = "beyondcls."
# What follows the prefix in the name of a group, and what its entries are called.
GROUPS = {
    "encoders": "encoder",
    "aggregators": "aggregator",
    "statistics": "attention statistic",
    "block_statistics": "attention statistic",
    "datasets": "form of data set",
    "metrics": "metric",
    "multilabel_metrics": "metric",
}
METRICS = ("metrics", "multilabel_metrics")  # all that are installed are computed; of other groups, what is named
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")  # of an entry or a package: no path, no colon


@dataclass(frozen=True)
class Plugin:
    """An entry that another package declares.

    Attributes:
        group: a key of GROUPS.
        package, version: of the distribution, as `pip list` shows them.
        value: MODULE:ATTRIBUTE.
    """

    group: str
    name: str
    package: str
    version: str
    value: str

    def __str__(self) -> str:
        return f"{GROUPS.get(self.group, 'entry')} {self.name!r} of the package {self.package} {self.version}"

    def load(self, check: Callable[[Any], object]) -> Any:
        """Import what is declared; `check` raises TypeError for what cannot be an entry.

        Raises:
            BeyondClsError: the package cannot be imported, or lacks it; or it is refused.
        """
        try:
            entry = EntryPoint(self.name, self.value, PREFIX + self.group).load()
        except (Exception, SystemExit) as error:
            reason = first_line(error)
            raise self.fault(f"cannot be imported ({type(error).__name__}: {reason})") from error
        try:
            check(entry)
        except TypeError as error:
            raise self.fault(f"is refused: {error}") from error
        return entry

    def fault(self, why: str) -> BeyondClsError:
        """What is wrong with it, and what to do."""
        return BeyondClsError(f"{self} {why}; mend it, pip install --upgrade {self.package}, or pip uninstall {self.package}")

    def digest(self) -> str:
        """SHA-256 of the package's version and of all its Python files, hexadecimal. Nothing is imported."""
        content = hashlib.sha256(f"{self.package} {self.version} {self.value}\n".encode())
        for folder in _files_of_module(self.value.partition(":")[0]):
            for file in sorted(folder.rglob("*.py")) if folder.is_dir() else [folder]:
                content.update(f"{file.relative_to(folder).as_posix()} {file.stat().st_size}\n".encode())
                content.update(file.read_bytes())
        return content.hexdigest()


def _files_of_module(module: str) -> list[Path]:
    """The package or the file with a module; of a package without `__init__.py`, the first below it that has one."""
    first, *rest = module.split(".")
    spec = importlib.util.find_spec(first)
    if spec is None:
        return []
    places = [Path(folder) for folder in spec.submodule_search_locations or ()]
    if not places:
        return [Path(spec.origin)] if spec.origin and spec.has_location else []
    for part in rest:
        if any((folder / "__init__.py").is_file() for folder in places):
            break
        inner = [place for folder in places for place in (folder / part, folder / f"{part}.py")]
        places = [place for place in inner if place.exists()]
    return places


def declared(group: str) -> list[Plugin]:
    """What installed packages declare in a group, by name and package."""
    entries = [(e, getattr(e.dist, "name", None) or "unknown") for e in entry_points(group=PREFIX + group)]
    plugins = [Plugin(group, e.name, package, getattr(e.dist, "version", None) or "", e.value) for e, package in entries]
    return sorted(plugins, key=lambda plugin: (plugin.name, plugin.package))


def misplaced() -> list[str]:
    """Faults of entries in groups that nothing reads."""
    groups = [group.removeprefix(PREFIX) for group in entry_points().groups if group.startswith(PREFIX)]
    return [
        f"{plugin} is in none of the groups that are read: {unknown('group', plugin.group, GROUPS)}"
        for group in sorted(set(groups).difference(GROUPS))
        for plugin in declared(group)
    ]


class Registry(MutableMapping[str, T], Generic[T]):
    """Entries by name: this program's, then those of other packages, which are imported when they are first asked for.

    Iterating gives all names and imports nothing. `items` and `values` leave out entries of packages that cannot be imported,
    with a warning; asking for one raises.

        METRICS = Registry[Metric]("metrics", of_functions) | {"top1": …}

    Args:
        group: of entry points, a key of GROUPS.
        check: raises TypeError for what cannot be an entry.
        is_taken: whether a name means something else already.

    Attributes:
        own: entries of this program, whose names no package can take.
    """

    def __init__(self, group: str, check: Callable[[Any], object], is_taken: Callable[[str], bool] = lambda _: False):
        self.group, self._check, self._is_taken = group, check, is_taken
        self.own: dict[str, T] = {}
        self._path: tuple[str, ...] | None = None
        self._plugins: dict[str, Plugin] = {}
        self._loaded: dict[str, T | BeyondClsError] = {}  # failures too: metrics are asked for with every batch

    def __or__(self, own: Mapping[str, T]) -> "Registry[T]":
        """The registry with these entries of this program."""
        joined = Registry[T](self.group, self._check, self._is_taken)
        joined.own = self.own | dict(own)
        return joined

    def plugins(self) -> dict[str, Plugin]:
        """Entries of other packages by name.

        Warns:
            BeyondClsWarning: an entry is refused; once, and again where the path of imports has changed.
        """
        if self._path == (path := tuple(sys.path)):
            return self._plugins
        self._path, self._plugins, self._loaded = path, {}, {}
        for plugin in (every := declared(self.group)):
            rivals = [other.package for other in every if other.name == plugin.name and other is not plugin]
            remedy = f"its package has to name it otherwise; until then it is refused (pip uninstall {plugin.package})"
            if plugin.name in self.own or self._is_taken(plugin.name):
                why = f"a name of beyondcls, which keeps its meaning; {remedy}"
            elif not NAME.fullmatch(plugin.name):
                why = f"a name with other characters than letters, digits, '-', '_' and '.'; {remedy}"
            elif rivals:
                why = f"the name of one of {', '.join(rivals)}; uninstall one of these packages"
            else:
                self._plugins[plugin.name] = plugin
                continue
            warnings.warn(f"{plugin} has {why}", BeyondClsWarning, stacklevel=3)
        return self._plugins

    def plugin(self, name: str) -> Plugin | None:
        """The entry of another package with this name; None for a name of this program, or of nothing."""
        return None if name in self.own else self.plugins().get(name)

    def check_package(self, name: str, package: object, file: object) -> None:
        """Refuse an entry that a file says to be of another package than the one that declares it here.

        Args:
            package: what the file says, which nobody vouches for; None of an entry of this program.

        Raises:
            BeyondClsError: the package is not installed, or does not declare it.
        """
        plugin = self.plugin(name)
        if not isinstance(package, str) or not NAME.fullmatch(package) or (plugin is not None and plugin.package == package):
            return
        here = f"one of {plugin.package if plugin else 'beyondcls'}" if name in self else "none of this name"
        raise BeyondClsError(
            f"{file} needs the {GROUPS[self.group]} {name!r} of the package {package!r}, and here there is {here}; "
            f"if you trust that package: pip install {package}"
        )

    def __getitem__(self, name: str) -> T:
        """An entry.

        Raises:
            KeyError: there is none of this name.
            BeyondClsError: its package cannot be imported, or declares what cannot be an entry.
        """
        plugin = self.plugins().get(name)
        if plugin is None:
            return self.own[name]
        if name not in self._loaded:
            try:
                self._loaded[name] = plugin.load(self._check)
            except BeyondClsError as error:
                self._loaded[name] = error
        if isinstance(entry := self._loaded[name], BeyondClsError):
            raise entry
        return entry

    def __setitem__(self, name: str, entry: T) -> None:
        self.own[name], self._path = entry, None

    def __delitem__(self, name: str) -> None:
        del self.own[name]
        self._path = None

    def __contains__(self, name: object) -> bool:
        return name in self.own or name in self.plugins()

    def __iter__(self) -> Iterator[str]:
        return iter([*self.own, *self.plugins()])

    def __len__(self) -> int:
        return len(self.own) + len(self.plugins())

    def __repr__(self) -> str:
        return f"Registry({self.group}: {', '.join(self)})"

    def values(self) -> ValuesView[T]:
        return dict(self.items()).values()

    def items(self) -> ItemsView[str, T]:
        entries = dict(self.own)
        for name in self.plugins():
            try:
                entries[name] = self[name]
            except BeyondClsError as error:
                warnings.warn(f"left out: {error}", BeyondClsWarning, stacklevel=2)
        return entries.items()
