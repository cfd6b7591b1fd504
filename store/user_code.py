"""Code of the user: what FILE.py:NAME names."""

import hashlib
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from store.errors import BeyondClsError, first_line


def is_custom(name: str) -> bool:
    """Whether a name is FILE.py:NAME."""
    return ".py:" in name


def file_of(name: str) -> str | None:
    """The file of FILE.py:NAME; None for another name."""
    file, colon, _ = name.rpartition(":")
    return file if colon and file.endswith(".py") else None


def module_of(name: str) -> ModuleType:
    """The module that running the file of FILE.py:NAME gives; once as long as it is unchanged: trust it before you name it."""
    with explaining(name, f"{name.rpartition(':')[0]} cannot be imported"):
        return _run_file(_find_file(name), custom_digest(name))


def function_of(name: str, kind: str, returns: str, or_else: str = "") -> Callable[..., Any]:
    """The function of FILE.py:FUNCTION or package.module:function.

    Args:
        kind: what it is to name, for messages, e.g. encoder.
        returns: what the function is to return.
        or_else: what else could be named, e.g. "a library, ".

    Raises:
        BeyondClsError: no such file, module or function, or an error in it.
    """
    place, _, thing = name.rpartition(":")
    try:
        module = module_of(name) if is_custom(name) else import_module(place)
    except ImportError as error:
        raise BeyondClsError(
            f"{name!r} names no {kind}: {error}; expected {or_else}FILE.py, or a module that can be imported"
        ) from error
    function = getattr(module, thing, None)
    if not callable(function):
        raise BeyondClsError(f"{place} has no function {thing!r}, expected one that returns {returns}")
    return function


def custom_digest(name: str) -> str:
    """SHA-256 of the file of FILE.py:NAME."""
    return hashlib.sha256(_find_file(name).read_bytes()).hexdigest()


@contextmanager
def explaining(name: str, failure: str) -> Iterator[None]:
    """Turn any error in the file of FILE.py:NAME into a message with the line where it occurred.

    Raises:
        BeyondClsError: any error.
    """
    try:
        yield
    except BeyondClsError:
        raise
    except (Exception, SystemExit) as error:
        path = str(Path(name.rpartition(":")[0]).resolve())
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
        place = f" in line {lines[-1]}" if lines else ""
        reason = first_line(error)
        raise BeyondClsError(f"{failure}{place} ({type(error).__name__}: {reason}); mend it") from error


def _find_file(name: str) -> Path:
    file, _, thing = name.rpartition(":")
    path = Path(file).resolve()
    if not path.is_file():
        raise BeyondClsError(f"there is no file {file!r} (looked for {path}); expected FILE.py:NAME, e.g. mine.py:{thing}")
    return path


@cache
def _run_file(path: Path, digest: str) -> ModuleType:
    """The module that running a file gives; `digest` is that of its content, so that an edited file runs again."""
    name = f"_beyondcls_own_{hashlib.sha256(str(path).encode()).hexdigest()[:16]}_{digest[:16]}"
    module = ModuleType(name)
    module.__file__ = str(path)
    sys.modules[name] = module
    try:  # not by a loader of importlib: bytecode caches miss an edit within the same second that keeps the length
        exec(compile(path.read_bytes(), path, "exec", dont_inherit=True), module.__dict__)
    except BaseException:
        del sys.modules[name]
        raise
    return module
