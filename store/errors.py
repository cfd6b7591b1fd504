"""What users can cause: each message gives the value, what was expected, and the remedy."""

import difflib
from collections.abc import Iterable

from store.shown import redacted


class _Redacted(Exception):
    """Its message has no secrets of addresses, wherever it is shown or kept."""

    def __init__(self, *args: object):
        super().__init__(*(redacted(value) if isinstance(value, str) else value for value in args))


class BeyondClsError(_Redacted, ValueError):
    """Base of every error that a user can cause; the command line prints its message without a traceback."""


class StoreError(BeyondClsError):
    """A feature store is missing, incomplete, damaged, or not the one that was asked for."""


class BeyondClsWarning(_Redacted, UserWarning):
    """What a user should know; the command line prints it as a note."""


def other_version(where: object, version: object, expected: int, again: str) -> str:
    """Message for a file that says another format version than this program reads; `again`: how to make an older one again."""
    later = isinstance(version, int) and version > expected
    remedy = "a later beyondcls wrote it: pip install --upgrade beyondcls" if later else again
    return f"{where} has format version {version}, expected {expected}; {remedy}"


def too_old(where: object, found: str, expected: str, again: str) -> str:
    """Message for a file that development versions wrote before the first release; `again`: how to make it again."""
    return f"{where} has {found}, expected {expected}, as files have since beyondcls 0.1.0; {again}"


def unknown(kind: str, value: str, known: Iterable[str], remedy: str = "") -> str:
    """Message for a name that no registry has: `unknown aggregator 'abmlip'; did you mean 'abmilp'? known: …`."""
    names = sorted(map(str, known))
    near = difflib.get_close_matches(str(value), names, n=1, cutoff=0.5)
    guess = f"; did you mean {near[0]!r}?" if near else ";"
    shown = ", ".join(names[:12]) + (f", … ({len(names)} in all)" if len(names) > 12 else "")
    return f"unknown {kind} {value!r}{guess} known: {shown}" + (f". {remedy}" if remedy else "")


def first_line(error: object) -> str:
    """Of what others' errors say, the first line, which may be empty."""
    return next(iter(str(error).strip().splitlines()), "")
