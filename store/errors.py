"""What users can cause: each message gives the value, what was expected, and the remedy."""

import difflib
from collections.abc import Iterable


class BeyondClsError(ValueError):
    """Base of every error that a user can cause; the command line prints its message without a traceback."""


class StoreError(BeyondClsError):
    """A feature store is missing, incomplete, damaged, or not the one that was asked for."""


class BeyondClsWarning(UserWarning):
    """What a user should know; the command line prints it as a note."""


def unknown(kind: str, value: str, known: Iterable[str], remedy: str = "") -> str:
    """Message for a name that no registry has: `unknown aggregator 'abmlip'; did you mean 'abmilp'? known: …`."""
    names = sorted(known)
    near = difflib.get_close_matches(value, names, n=1, cutoff=0.5)
    guess = f"; did you mean {near[0]!r}?" if near else ";"
    shown = ", ".join(names[:12]) + (f", … ({len(names)} in all)" if len(names) > 12 else "")
    return f"unknown {kind} {value!r}{guess} known: {shown}" + (f". {remedy}" if remedy else "")
