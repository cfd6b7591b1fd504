"""Options of commands as tables: each is defined once, with its type, its help and its default."""

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import typer


@dataclass(frozen=True)
class Option:
    """An option that several commands share, or that params.yaml may also set.

    Attributes:
        type: of its value on the command line; list[str] for one that may be repeated.
        help: description for `--help`.
        default: the value if neither sets it, in words; empty if the help says it.
        flags: of a switch, such as `--drop-last/--no-drop-last`, or several, with spaces; its name by default.
        least: the smallest value of a number.
        read: (name of the option, text) to a value, where the command line has text in place of a list.
    """

    type: type
    help: str
    default: str = ""
    flags: str = ""
    least: int | None = None
    read: Callable[[str, str], Any] | None = None

    def annotation(self) -> Any:
        """The annotation for typer; the value is None if the option is not given."""
        shown = "  ".join(filter(None, (self.help, f"[default: {self.default}]" if self.default else "")))
        return Annotated[self.type | None, typer.Option(*self.flags.split(), help=shown, min=self.least)]


Table = Mapping[str, Option]


def flag_of(name: str) -> str:
    """`--base-lr` for base_lr."""
    return f"--{name.replace('_', '-')}"


def takes_options(*tables: Table) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Let a command take the options of tables beside its own parameters: those that were given arrive in its `**given`."""
    options = {name: option for table in tables for name, option in table.items()}

    def decorate(main: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(main)
        def command(**values: Any) -> None:
            for name, option in options.items():
                value = values.pop(name, None)
                if value not in (None, []):
                    values[name] = option.read((option.flags or flag_of(name)).split()[0], value) if option.read else value
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
