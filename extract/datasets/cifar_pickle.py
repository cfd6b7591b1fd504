"""The pickles of CIFAR's python version, read without running any of their code: arrays stay what their file says of them."""

from pathlib import Path
from typing import Any

from extract.datasets.sample import DataError
from extract.plain_pickle import PlainPickle, UnknownName


class Array:
    """An array, or its dtype: keeps the state, and makes nothing of it."""

    def __init__(self, *arguments: Any):
        self.state: Any = None

    def take(self, state: Any) -> None:
        self.state = state

    @property
    def content(self) -> bytes:
        """The bytes of an array: its state is (version, shape, dtype, is_fortran, bytes)."""
        *_, is_fortran, content = self.state
        if not isinstance(content, bytes) or is_fortran:
            raise ValueError("an array that is not a plain block of bytes")
        return content


NAMES = dict.fromkeys(
    ("numpy.core.multiarray._reconstruct", "numpy._core.multiarray._reconstruct", "numpy.ndarray", "numpy.dtype"), Array
)


def plain_batch(file: Path) -> dict[bytes, Any]:
    """The dictionary in a file of the python version; keys and texts are bytes, arrays are `Array`.

    Raises:
        DataError: it is missing, cut, or holds more than plain values and arrays.
    """
    try:
        with file.open("rb") as source:
            batch = PlainPickle(source, file.stat().st_size, NAMES, {Array: Array.take}, text=bytes).load()
    except UnknownName as error:
        raise DataError(f"{file}: it names {error}, which CIFAR's files do not; do not use this file") from None
    except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
        raise DataError(f"{file} cannot be read ({error!s}); unpack the data set again") from error
    if not isinstance(batch, dict):
        raise DataError(f"{file} holds {type(batch).__name__}, expected a dictionary; unpack the data set again")
    return {key.encode() if isinstance(key, str) else key: value for key, value in batch.items()}
