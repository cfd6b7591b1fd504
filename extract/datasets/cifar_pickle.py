"""The pickles of CIFAR's python version, read without running any of their code.

A pickle runs code by naming a function. Every name is replaced by one of the three inert classes below, which only keep
their arguments; a name that CIFAR's files do not hold is refused.
"""

import pickle
from pathlib import Path
from typing import Any

from extract.datasets.listed import parsing
from extract.datasets.sample import DataError


class Inert:
    """Replaces an array, its dtype, and the function that makes it: keeps the state, and runs nothing."""

    def __init__(self, *arguments: Any):
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state

    @property
    def content(self) -> bytes:
        """The bytes of an array: its state is (version, shape, dtype, is_fortran, bytes)."""
        *_, is_fortran, content = self.state
        if not isinstance(content, bytes) or is_fortran:
            raise ValueError("an array that is not a plain block of bytes")
        return content


class Array(Inert):
    pass


class Dtype(Inert):
    pass


class Reconstruct(Inert):
    pass


NAMES: dict[tuple[str, str], type[Inert]] = {
    ("numpy.core.multiarray", "_reconstruct"): Reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): Reconstruct,  # as numpy 2 writes it
    ("numpy", "ndarray"): Array,
    ("numpy", "dtype"): Dtype,
}


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> type[Inert]:
        if (module, name) not in NAMES:
            raise DataError(f"it names {module}.{name}, which CIFAR's files do not; do not use this file")
        return NAMES[module, name]


def plain_batch(file: Path) -> dict[bytes, Any]:
    """The dictionary in a file of the python version; keys and texts are bytes, arrays are `Inert`.

    Raises:
        DataError: it is missing, cut, or holds more than plain values and arrays.
    """
    try:
        with file.open("rb") as source, parsing(file, "a pickle of CIFAR"):
            batch = _Reader(source, encoding="bytes").load()
    except DataError as error:
        raise DataError(f"{file}: {error}") from error
    except (OSError, EOFError, pickle.UnpicklingError, MemoryError) as error:
        raise DataError(f"{file} cannot be read ({error or type(error).__name__}); unpack the data set again") from error
    if not isinstance(batch, dict):
        raise DataError(f"{file} holds {type(batch).__name__}, expected a dictionary; unpack the data set again")
    return {key.encode() if isinstance(key, str) else key: value for key, value in batch.items()}
