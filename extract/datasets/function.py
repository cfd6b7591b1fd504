"""Images that a function of the user's gives: FILE.py:FUNCTION, or package.module:function."""

import inspect
from pathlib import Path
from typing import Any

from extract.datasets.form import Splitting
from extract.datasets.items import Given
from extract.datasets.objects import given
from extract.datasets.sample import DataError
from store import BeyondClsError
from store.user_code import explained, function_of


def function(source: str, split: str | None = None, /, **arguments: Any) -> Given:
    """What a function returns: whatever `objects.given` takes. It is run, so name none that you do not trust.

    The split is passed to a function that takes `split`; what another returns is a mapping of splits.
    """
    if not is_function(source):
        raise DataError(f"there is no function {source!r}; expected FILE.py:FUNCTION, or package.module:function")
    try:
        make = function_of(source, "function", "images")
        parameters = inspect.signature(make).parameters.values()
        if any(p.name == "split" or p.kind is p.VAR_KEYWORD for p in parameters):
            arguments, split = {"split": split, **arguments} if split is not None else arguments, None
        with explained(source, f"{source} fails"):
            made = make(**arguments)
    except BeyondClsError as error:
        raise DataError(str(error)) from error
    return given(made, source, split)


def is_function(source: str) -> bool:
    """Whether a source is FILE.py:FUNCTION or package.module:function, as no file is called."""
    place, colon, name = source.rpartition(":")
    is_module = all(part.isidentifier() for part in place.split("."))
    return bool(colon) and name.isidentifier() and (is_module or place.endswith(".py")) and not Path(source).exists()


FUNCTION = Splitting(function, is_function)
