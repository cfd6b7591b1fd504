"""Arrays that results hold, read without trusting what their headers say of their size."""

from io import BytesIO
from pathlib import Path
from zipfile import ZipFile

import numpy as np

from store import BeyondClsError

MOST_PACKED = 1032  # times that deflate, which numpy uses, shortens anything


def array_of(file: Path, expected: str, member: str | None = None) -> np.ndarray:
    """The array of a .npy file, mapped; or a member of a .npz file, in memory. No pickle is ever read.

    numpy.load takes the memory that a header states before it reads; here the header is compared with the bytes that are there.

    Args:
        expected: what it should be, and what to do otherwise, for the message.

    Raises:
        BeyondClsError: it is damaged, cut, or no array of numbers.
        PermissionError: it may not be read.
    """
    try:
        if member is None:
            return np.lib.format.open_memmap(file, "r")
        with ZipFile(file) as archive:
            entry = archive.getinfo(f"{member}.npy")
            if entry.file_size > MOST_PACKED * file.stat().st_size:
                raise ValueError(f"its {member} would unpack to {entry.file_size} bytes")
            content = archive.read(entry)
        source = BytesIO(content)
        version = np.lib.format.read_magic(source)
        read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, is_fortran, dtype = read_header(source)
        if min(shape, default=0) < 0:
            raise ValueError(f"its shape is {list(shape)}")
        return np.frombuffer(content, dtype, offset=source.tell()).reshape(shape, order="F" if is_fortran else "C")
    except PermissionError:
        raise
    except Exception as error:  # numpy and zipfile raise many kinds
        reason = " ".join(str(error).split())[:200]  # numpy cites whole headers
        raise BeyondClsError(f"{file} is damaged ({reason}), expected {expected}") from error
