"""Arrays are compared with the shapes and dtypes of signatures as the tests run; `conftest` imports this first.

Other annotations are left to the type checker: tests give wrong types on purpose, to read the message. Of a sequence of arrays,
beartype checks a random one, of a mapping the first.
"""

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import is_dataclass
from functools import partial, wraps
from importlib.machinery import SourceFileLoader
from threading import Lock
from typing import Any, get_args
from unittest.mock import patch

import jaxtyping
from beartype import beartype
from jaxtyping import _import_hook
from torch.compiler import is_compiling

PACKAGES = ("extract", "pipelines", "probe", "store")
OFTEN = 100  # calls of a function that each test checks; of thousands of training steps, the rest would only take time
CALLS: Counter[Callable] = Counter()  # in the current test
IMPORTING = Lock()
SIZES = jaxtyping.jaxtyped("context")  # within it, a name is one size


def has_shape(hint: Any) -> bool:
    """Whether an annotation contains an array of jaxtyping."""
    assert not (isinstance(hint, str) and re.search(r"\[(Tensor|np\.ndarray), ['\"]", hint)), f"not checked in quotes: {hint}"
    return (isinstance(hint, type) and issubclass(hint, jaxtyping.AbstractArray)) or any(map(has_shape, get_args(hint)))


def checked(target: Any) -> Any:
    """A function, or a class with its fields if it is a dataclass, whose annotations are checked if they contain shapes."""
    if isinstance(target, type):
        if is_dataclass(target):
            target.__init__ = checked(target.__init__)
        return target
    hints = target.__annotations__
    shapes = {name: hint for name, hint in hints.items() if has_shape(hint)}
    if not shapes:
        return target
    target.__annotations__ = shapes  # all that beartype sees
    check = beartype(target)
    target.__annotations__ = hints

    @wraps(target)
    def call(*args: Any, **kwargs: Any) -> Any:
        if is_compiling() or CALLS[target] >= OFTEN:  # torch.compile traces the program, not the checks
            return target(*args, **kwargs)
        CALLS[target] += 1
        with SIZES:
            return check(*args, **kwargs)

    return call


def get_code(loader: Any, name: str) -> Any:
    """The decorated code of a module, cached beside that of others.

    As the hook does it, but by one thread at a time, and not for as long as the module runs: where two threads import at once,
    decorated code would come into the cache of plain code.
    """
    decorated = partial(_import_hook._optimized_cache_from_source, loader._typechecker.get_hash())
    with IMPORTING, patch("importlib._bootstrap_external.cache_from_source", decorated):
        return SourceFileLoader.get_code(loader, name)


_import_hook._JaxtypingLoader.get_code = get_code
_import_hook._JaxtypingLoader.exec_module = SourceFileLoader.exec_module
jaxtyping.jaxtyped = lambda *, typechecker: typechecker  # the name by which the hook decorates; it would check parameters twice
jaxtyping.install_import_hook(PACKAGES, f"{__name__}.checked")
