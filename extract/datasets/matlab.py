"""Variables of a MATLAB file."""

import io
import math
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from extract.datasets.sample import DataError

MATRIX, COMPRESSED = 14, 15  # types of elements
CELL, STRUCTURE, SPARSE, LAST = 1, 2, 5, 15  # classes of matrices; up to the last those of numbers
UNPACKED_NBYTES = 1 << 28  # at most, of a compressed variable; those of published data sets have some millions


def matlab_variable(file: Path, name: str) -> list[Any]:
    """Elements of a variable. scipy reads plain values; it runs nothing that a file holds.

    Raises:
        DataError: the file is missing or damaged, or scipy is not installed.
    """
    try:
        from scipy.io import loadmat
    except ModuleNotFoundError as error:
        raise DataError(f"{file} is a MATLAB file, which needs scipy; install beyondcls[extract]") from error
    if not file.is_file():
        raise DataError(f"{file} is missing; it belongs to the data set: get it again")
    try:
        _check_nesting(file.read_bytes())
        content = loadmat(str(file), squeeze_me=True, variable_names=[name])
        return list(content[name].reshape(-1))
    except Exception as error:  # scipy raises many kinds; each becomes a message that names the file
        raise DataError(f"{file} cannot be read ({error!r}): expected a MATLAB file with {name}; get it again") from error


def _check_nesting(content: bytes) -> None:
    """Refuse cells in cells without end, into which scipy descends by calls in C, until the stack overflows.

    Raises:
        RecursionError: they are deeper than calls in Python may be.
        ValueError: damage, or a variable that unpacks to much.
    """
    order = "little" if content[126:128] == b"IM" else "big"  # as scipy takes it
    position = len(content) if 0 in content[:4] else 128  # version 4 has no cells
    while position < len(content):
        kind, nbytes, begin, _ = _tag(content, position, order)
        if kind == COMPRESSED:
            unpacked = zlib.decompressobj().decompress(content[begin : begin + nbytes], UNPACKED_NBYTES)
            if len(unpacked) == UNPACKED_NBYTES:
                raise ValueError(f"a variable of more than {UNPACKED_NBYTES} bytes")
            _behind_matrix(unpacked, 0, order)
        elif kind == MATRIX:
            _behind_matrix(content, position, order)
        position = begin + nbytes


def _tag(content: bytes, position: int, order: Any) -> tuple[int, int, int, int]:
    """Type and number of bytes of an element, where they begin, and where the next one does."""
    kind, nbytes = (int.from_bytes(content[position + i : position + i + 4], order) for i in (0, 4))
    if position + 8 > len(content):
        raise ValueError("it is cut")
    if kind >> 16:  # both numbers in four bytes, and the content in the next four
        return kind & 0xFFFF, kind >> 16, position + 4, position + 8
    return kind, nbytes, position + 8, position + 8 + nbytes + -nbytes % 8


def _behind_matrix(content: bytes, position: int, order: Any) -> int:
    """Where a matrix ends, as scipy reads it: element by element, whatever its tag says."""

    def element() -> bytes:
        nonlocal position
        _, nbytes, begin, position = _tag(content, position, order)
        return content[begin : begin + nbytes]

    def integers() -> list[int]:
        values = element()
        return [int.from_bytes(values[i : i + 4], order, signed=True) for i in range(0, len(values), 4)]

    kind, nbytes, position, _ = _tag(content, position, order)
    if kind != MATRIX or not nbytes:
        return position
    flags, sizes, _ = integers()[0], integers(), element()
    n_within, kind = math.prod(sizes), flags & 0xFF
    if kind in (CELL, STRUCTURE):
        if kind == STRUCTURE:
            length = integers()[0]  # of the name of a field
            n_within *= len(element()) // length
        for _ in range(n_within):
            position = _behind_matrix(content, position, order)
    elif kind <= LAST:
        for _ in range(1 + (flags >> 11 & 1) + 2 * (kind == SPARSE)):
            element()
    return position


def matlab_file(name: str, rows: Sequence[Sequence[Any]], fields: Sequence[str] = ()) -> bytes:
    """A file with one variable, for examples: cells, or structures with these fields."""
    from scipy.io import savemat

    file = io.BytesIO()
    savemat(file, {name: np.array(rows, [(field, object) for field in fields] if fields else object)})
    return file.getvalue()
