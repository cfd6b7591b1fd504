"""How contracts are checked: functions of one subject, which raise AssertionError; under `python -O`, too."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor

from store.errors import BeyondClsError, unknown
from store.plugins import GROUPS, Registry

S = TypeVar("S")
CHECKED = "checked-here"


def expect(holds: object, message: str) -> None:
    """Raise unless something holds.

    Raises:
        AssertionError: it does not.
    """
    if not holds:
        raise AssertionError(message)


def expect_close(given: Tensor, expected: Tensor, message: str, rtol: float | None = None, atol: float | None = None) -> None:
    """Raise unless two tensors agree as `torch.testing.assert_close` has it; NaN is no agreement.

    Raises:
        AssertionError: they differ.
    """
    torch.testing.assert_close(given, expected, rtol=rtol, atol=atol, msg=lambda text: f"{message}: {text}")


def run(checks: Sequence[Callable[[S], None]], subject: S) -> None:
    """Run all checks on a subject.

    Raises:
        AssertionError: the first that fails, with its name; an error of any other kind counts as such.
    """
    for check in checks:
        with torch.random.fork_rng(devices=[]):
            try:
                check(subject)
            except Exception as error:
                kind = "" if isinstance(error, AssertionError) else f"{type(error).__name__}: "
                raise AssertionError(f"{subject}: {check.__name__.replace('_', ' ')}: {kind}{error}") from error


@contextmanager
def registered(registry: Registry[Any], entry: Any) -> Iterator[str]:
    """The name of an entry in a registry; what is neither a name nor there already is there for the time being.

    Raises:
        AssertionError: no such name, or the package that declares it cannot be imported.
    """
    if not isinstance(entry, str):
        entry = next((name for name, known in registry.items() if known is entry), entry)
    if not isinstance(entry, str):
        registry[CHECKED] = entry
        try:
            yield CHECKED
        finally:
            del registry[CHECKED]
        return
    expect(entry in registry, unknown(GROUPS[registry.group], entry, registry, "Is its package installed?"))
    try:
        registry[entry]
    except BeyondClsError as error:
        raise AssertionError(str(error)) from error
    yield entry
