"""Options of aggregators: plain JSON values, checked."""

from collections.abc import Iterable, Sequence
from typing import Any

from store import BeyondClsError
from store.errors import unknown


def whole_number(name: str, value: Any, lowest: int = 1) -> int:
    """A whole number.

    Raises:
        BeyondClsError: not a whole number, or one below `lowest`.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < lowest:
        raise BeyondClsError(f"{name} is {value!r}, expected {lowest} or more (a whole number)")
    return value


def choice(name: str, value: Any, choices: Iterable[str]) -> str:
    """One of several words.

    Raises:
        BeyondClsError: not one of `choices`.
    """
    if value not in tuple(choices):
        raise BeyondClsError(unknown(name, str(value), choices))
    return value


def flag(name: str, value: Any) -> bool:
    """True or false.

    Raises:
        BeyondClsError: neither true nor false.
    """
    if not isinstance(value, bool):
        raise BeyondClsError(f"{name} is {value!r}, expected true or false")
    return value


def kinds_of_blocks(kind: str, blocks: Sequence[int] | None) -> tuple[str, ...]:
    """The kind itself, which means the probed block; or that of each of some blocks: "cls/block5".

    Raises:
        BeyondClsError: not a list of different whole numbers from 0 on.
    """
    return (kind,) if blocks is None else tuple(f"{kind}/block{block}" for block in distinct_numbers("blocks", blocks))


def distinct_numbers(name: str, value: Any) -> list[int]:
    """Whole numbers, each once.

    Raises:
        BeyondClsError: not a list of different whole numbers from 0 on.
    """
    numbers = [whole_number(f"one of {name}", v, 0) for v in value] if isinstance(value, list | tuple) else []
    if not numbers or len(set(numbers)) < len(numbers):
        raise BeyondClsError(f"{name} is {value!r}, expected a list of different whole numbers such as [3, 5]")
    return numbers
