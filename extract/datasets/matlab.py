"""Variables of a MATLAB file."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from extract.datasets.sample import DataError


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
        content = loadmat(str(file), squeeze_me=True, variable_names=[name])
        return list(content[name].reshape(-1))
    except Exception as error:  # scipy raises many kinds; each becomes a message that names the file
        raise DataError(f"{file} cannot be read ({error!r}): expected a MATLAB file with {name}; get it again") from error


def matlab_file(name: str, rows: Sequence[Sequence[Any]], fields: Sequence[str] = ()) -> bytes:
    """A file with one variable, for examples: cells, or structures with these fields."""
    from scipy.io import savemat

    file = io.BytesIO()
    savemat(file, {name: np.array(rows, [(field, object) for field in fields] if fields else object)})
    return file.getvalue()
