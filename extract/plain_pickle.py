"""Pickles read as plain data, by a machine that calls nothing but functions of ours.

Readers that call what a file names are only as safe as each name is with each argument and each state. Here a name stands for a
function that checks what it is given; only lists, dictionaries, sets and objects of ours change; and what a pickle makes is
limited, whatever its size.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pickletools import genops
from typing import IO, Any

MOST_STEPS = 2_000_000  # some hundred megabytes of objects, and seconds
STEP_NBYTES = 64  # of text that count as a step where they are copied
ARGUMENTS = {
    "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE", "BINBYTES", "SHORT_BINBYTES",
}  # fmt: skip
CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
EMPTY: dict[str, Callable[[], Any]] = {"EMPTY_LIST": list, "EMPTY_DICT": dict, "EMPTY_SET": set}
TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


class UnknownName(ValueError):
    """A pickle names what is on no list."""


@dataclass(frozen=True, eq=False)
class Named:
    """What a pickle names, and what it means here: a function of ours, which can be called, or a plain value."""

    name: str
    meaning: Any

    def __call__(self, *arguments: Any) -> Any:
        return self.meaning(*arguments)


class PlainPickle:
    """Reads pickles, one after the other.

    Args:
        source: at the beginning of a pickle; afterwards behind it.
        nbytes: of the source.
        names: `module.name` -> what it means. A function must not look into values deeper than it checks their types, and its
            work must be proportional to the lengths of its arguments.
        build: how objects of a type take the state that a pickle gives them.
        stored: what a persistent id stands for.
        text: the value of a string of Python 2.
    """

    def __init__(
        self,
        source: IO[bytes],
        nbytes: int,
        names: Mapping[str, Any],
        build: Mapping[type, Callable[[Any, Any], None]],
        stored: Callable[[Any], Any] | None = None,
        text: Callable[[bytes], Any] = bytes.decode,
    ):
        self._source, self._nbytes, self.readline = source, nbytes, source.readline
        self._names, self._build, self._stored, self._text = names, build, stored, text
        self._left = MOST_STEPS

    def read(self, n: int) -> bytes:
        """For `genops`: a length that a pickle states allocates no more than the source has."""
        return self._source.read(min(n, self._nbytes))

    def load(self) -> Any:
        """The content of the next pickle: plain values, tensors and arrays, and objects of ours.

        Raises:
            UnknownName: it names what is not in `names`.
            ValueError: it is damaged, uses what plain data does not need, or takes more than `MOST_STEPS`. Damage also raises
                IndexError, KeyError and TypeError.
        """
        stack, outer, memo = list[Any](), list[list[Any]](), dict[int, Any]()

        def above_mark() -> list[Any]:
            nonlocal stack
            items, stack = stack, outer.pop()
            return items

        argument: Any
        for opcode, argument, _ in genops(self):  # type: ignore[arg-type]
            name = opcode.name
            self._charge(1)
            if name in ARGUMENTS:
                stack.append(argument)
            elif name in CONSTANTS:
                stack.append(CONSTANTS[name])
            elif name in EMPTY:
                stack.append(EMPTY[name]())
            elif name in TUPLES:
                items = [stack.pop() for _ in range(TUPLES[name])]
                stack.append(tuple(reversed(items)))
            elif name in ("BINPUT", "LONG_BINPUT", "MEMOIZE"):
                memo[len(memo) if name == "MEMOIZE" else argument] = stack[-1]
            elif name in ("BINGET", "LONG_BINGET"):
                stack.append(memo[argument])
            elif name in ("BINSTRING", "SHORT_BINSTRING"):
                stack.append(self._text(argument.encode("latin-1")))
            elif name == "MARK":
                outer.append(stack)
                stack = []
            elif name == "TUPLE":
                items = above_mark()  # first, as it replaces the stack
                stack.append(tuple(items))
            elif name in ("APPEND", "APPENDS"):
                items = above_mark() if name == "APPENDS" else [stack.pop()]
                _expect_type(stack[-1], list).extend(items)
            elif name in ("SETITEM", "SETITEMS"):
                items = above_mark() if name == "SETITEMS" else [stack.pop(-2), stack.pop()]
                _expect_type(stack[-1], dict).update(zip(map(key, items[::2]), items[1::2], strict=True))
            elif name == "ADDITEMS":
                items = above_mark()
                _expect_type(stack[-1], set).update(map(key, items))
            elif name in ("GLOBAL", "STACK_GLOBAL"):
                parts = argument.split(" ", 1) if name == "GLOBAL" else [stack.pop(-2), stack.pop()]
                stack.append(self._named(".".join(parts)))
            elif name in ("REDUCE", "NEWOBJ"):
                arguments = _expect_type(stack.pop(), tuple)
                self._charge(sum(map(_copying_steps, arguments)))
                stack.append(_expect_type(stack.pop(), Named)(*arguments))
            elif name == "BUILD":
                state = stack.pop()
                self._charge(_copying_steps(state))
                self._build[type(stack[-1])](stack[-1], state)
            elif name == "BINPERSID" and self._stored is not None:
                stack.append(self._stored(stack.pop()))
            elif name == "STOP":
                return stack.pop()
            elif name not in ("PROTO", "FRAME"):
                raise ValueError(f"a pickle with the operation {name}, which plain data does not need")
        raise AssertionError("genops ends with STOP")

    def _named(self, name: str) -> Named:
        if name not in self._names:
            raise UnknownName(name)
        return Named(name, self._names[name])

    def _charge(self, n_steps: int) -> None:
        self._left -= n_steps
        if self._left < 0:
            raise ValueError(
                f"its pickle takes more than {MOST_STEPS:,} steps, more than tensors with their names and settings do"
            )


def key(value: Any) -> Any:
    """A value that may be a key: one whose hash takes no recursion, and no two of which are made to collide.

    Raises:
        ValueError: it is no text, and no number of 64 bits.
    """
    if type(value) not in (str, bytes, float, bool, type(None)) and not (type(value) is int and -(2**63) <= value < 2**63):
        raise ValueError(
            f"a dictionary or set with a {type(value).__name__} among its keys, expected text or numbers of 64 bits"
        )
    return value


def _expect_type(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise ValueError(f"a {type(value).__name__} in its pickle where a {kind.__name__} was expected")
    return value


def _copying_steps(argument: Any) -> int:
    """Steps that copying an argument takes."""
    if isinstance(argument, (str, bytes)):
        return len(argument) // STEP_NBYTES
    return len(argument) if isinstance(argument, (tuple, list, dict, set)) else 0
