"""Options of commands as tables: each is defined once, with its type, its help and its default."""

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from pipelines.parameters.params import check_names
from store.errors import BeyondClsError

# What the parameter file has for options of these types.
IN_FILES: dict[Any, tuple[type | tuple[type, ...], str]] = {
    int: (int, "a whole number"),
    float: ((int, float), "a number"),
    str: (str, "a name"),
    Path: (str, "a name"),
    bool: (bool, "true or false"),
    list[str]: (list, "a list of texts, in brackets"),
}
T = TypeVar("T")


def _reads_list(convert: Callable[[str], T], expected: str) -> Callable[[str, str], tuple[T, ...]]:
    """A function of the name of an option and of its text, numbers with commas; its BeyondClsError names the option."""

    def read(option: str, text: str) -> tuple[T, ...]:
        try:
            return tuple(convert(part) for part in text.split(","))
        except ValueError as error:
            raise BeyondClsError(f"{option} is {text!r}, expected {expected}") from error

    return read


integers = _reads_list(int, "integers with commas, e.g. 3,-1")  # `3,-1` as (3, -1)
numbers = _reads_list(float, "numbers with commas, e.g. 0.01,0.1")
LISTS: dict[Any, Callable[[str, str], Any]] = {list[int]: integers, list[float]: numbers}


@dataclass(frozen=True)
class Option:
    """An option that several commands share, or that params.yaml may also set.

    Attributes:
        type: of its value; list[str] for one that may be repeated. Other lists are text with commas on the command line.
        help: description for `--help`.
        default: the value if neither sets it, in words; empty if the help says it.
        flags: of a switch, such as `--drop-last/--no-drop-last`, or several, with spaces; its name by default.
        least: the smallest value of a number.
        read: (name of the option, text) to a value, where the command line has text in place of a list.
    """

    type: Any
    help: str
    default: str = ""
    flags: str = ""
    least: int | None = None
    read: Callable[[str, str], Any] | None = None

    def annotation(self) -> Any:
        """The annotation for typer; the value is None if the option is not given."""
        shown = "  ".join(filter(None, (self.help, f"[default: {self.default}]" if self.default else "")))
        kind = self.type if self.type in IN_FILES else str
        return Annotated[kind | None, typer.Option(*self.flags.split(), help=shown, min=self.least)]

    def from_command_line(self, name: str, value: Any) -> Any:
        """The value of what typer has read.

        Raises:
            BeyondClsError: it is no such list, or what `read` refuses.
        """
        read = self.read or LISTS.get(self.type)
        return read((self.flags or flag_of(name)).split()[0], value) if read else value

    def check(self, where: str, value: Any) -> None:
        """Refuse what cannot be the value in a parameter file, where a list is one.

        Args:
            where: name of the parameter, and where it was given.

        Raises:
            BeyondClsError: a value of another type, or too small.
        """
        if self.type not in IN_FILES:
            if not isinstance(value, list | tuple):
                raise BeyondClsError(f"{where} is {value!r}, expected a list; give [{value}]")
        elif self.read is not None:
            self.read(where, str(value))
        else:
            types, words = IN_FILES[self.type]
            is_other = self.type is not bool and isinstance(value, bool)
            is_mixed = isinstance(value, list) and not all(isinstance(text, str) for text in value)
            if not isinstance(value, types) or is_other or is_mixed:
                raise BeyondClsError(f"{where} is {value!r}, expected {words}")
            if self.least is not None and isinstance(value, int | float) and value < self.least:
                raise BeyondClsError(f"{where} is {value}, expected {self.least} or more")

    def checked(self, where: str, value: Any) -> Any:
        """A value of a parameter file, as the command takes it.

        Raises:
            BeyondClsError: as `check`, or a list with nothing in it.
        """
        if isinstance(value, list | tuple) and self.type == list[str]:
            value = [str(one) for one in value]
        self.check(where, value)
        if isinstance(value, list | tuple) and not value:
            raise BeyondClsError(f"{where} is {value!r}, expected a list with something in it; leave it out for the default")
        return self.from_command_line(where, ",".join(map(str, value))) if self.type in LISTS else value


Table = Mapping[str, Option]


def flag_of(name: str) -> str:
    """`--base-lr` for base_lr."""
    return f"--{name.replace('_', '-')}"


def check_values(place: str, values: Mapping[str, Any], table: Table) -> None:
    """Refuse values of a part of the parameter file that options of a table cannot have; None is no value.

    Args:
        place: comes before the names of the values, e.g. `probe.`.

    Raises:
        BeyondClsError: as `Option.check`.
    """
    for name, value in values.items():
        if name in table and value is not None:
            table[name].check(f"{place}{name}", value)


def checked_options(where: str, values: Mapping[str, Any], table: Table, others: Iterable[str] = ()) -> dict[str, Any]:
    """Options of a table in a part of the parameter file, as the command takes them; None is no value.

    Args:
        where: the part.
        others: names that may be there, too.

    Raises:
        BeyondClsError: a name that nothing reads, or as `Option.checked`.
    """
    check_names(where, values, [*others, *table])
    given = {name: value for name, value in values.items() if name in table and value is not None}
    return {name: table[name].checked(f"{where}.{name}", value) for name, value in given.items()}


def with_defaults(table: Table, owner: Callable[..., Any]) -> Table:
    """A table with the defaults that a dataclass or a function has for its options, where they do not say their own."""
    known = {name: parameter.default for name, parameter in inspect.signature(owner).parameters.items()}

    def shown(name: str, option: Option) -> Option:
        default = known.get(name)
        if option.default or default is None or isinstance(default, bool):
            return option
        text = ",".join(map(str, default)) if isinstance(default, tuple) else str(default).removesuffix(".0")
        return replace(option, default=text)

    return {name: shown(name, option) for name, option in table.items()}


def takes_options(*tables: Table) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Let a command take the options of tables beside its own parameters: those that were given arrive in its `**given`."""
    options = {name: option for table in tables for name, option in table.items()}

    def decorate(main: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(main)
        def command(**values: Any) -> None:
            for name, option in options.items():
                value = values.pop(name, None)
                if value not in (None, []):
                    values[name] = option.from_command_line(name, value)
            main(**values)

        own_parameters = [p for p in inspect.signature(main).parameters.values() if p.kind is not p.VAR_KEYWORD]
        shared = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=option.annotation())
            for name, option in options.items()
        ]
        parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own_parameters] + shared
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {p.name: p.annotation for p in parameters}
        return command

    return decorate


def select_options(given: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Those of the given options that are in a table."""
    return {name: given[name] for name in names if name in given}
