"""Images of more than 8 bits, which Pillow does not write."""

import struct
import zlib

import numpy as np
from jaxtyping import Shaped

GREY, RGB, GREY_ALPHA, RGB_ALPHA = 0, 2, 4, 6  # PNG's types of colour
DEFLATE = 8
FORMATS = {"u": 1, "i": 2, "f": 3}  # TIFF's, by NumPy's kind


def png16(values: Shaped[np.ndarray, "..."], colour: int = GREY) -> bytes:
    """A PNG of 16 bits."""
    height, width = values.shape[:2]
    lines = b"".join(b"\0" + line.astype(">u2").tobytes() for line in values)
    header = struct.pack(">IIBBBBB", width, height, 16, colour, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(lines)), (b"IEND", b""))
    chunks = (struct.pack(">I", len(d)) + kind + d + struct.pack(">I", zlib.crc32(kind + d)) for kind, d in parts)
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def tiff(values: Shaped[np.ndarray, "..."], compression: int = 1, orientation: int = 1) -> bytes:
    """A TIFF of the values' type and order of bytes, in one strip."""
    order = "<" if values.dtype.str[0] in "<|" else ">"
    height, width, n = *values.shape[:2], values.shape[2] if values.ndim == 3 else 1
    data = zlib.compress(values.tobytes()) if compression == DEFLATE else values.tobytes()
    tags: dict[int, tuple[int, ...]] = {
        256: (width,), 257: (height,), 258: (8 * values.itemsize,) * n, 259: (compression,), 262: (2 if n > 2 else 1,),
        273: (0,), 274: (orientation,), 277: (n,), 278: (height,), 279: (len(data),), 339: (FORMATS[values.dtype.kind],) * n,
    }  # fmt: skip
    first = 8 + 2 + 12 * len(tags) + 4  # byte behind the table
    beside = b"".join(struct.pack(f"{order}{len(v)}H", *v) for v in tags.values() if len(v) > 2)
    tags[273] = (first + len(beside),)
    table, at = b"", first
    for tag, numbers in tags.items():
        if len(numbers) > 2:
            table += struct.pack(f"{order}HHII", tag, 3, len(numbers), at)
            at += 2 * len(numbers)
        elif len(numbers) == 2:
            table += struct.pack(f"{order}HHI2H", tag, 3, 2, *numbers)
        else:
            table += struct.pack(f"{order}HHII", tag, 4, 1, *numbers)
    magic = b"II*\0" if order == "<" else b"MM\0*"
    return magic + struct.pack(f"{order}IH", 8, len(tags)) + table + bytes(4) + beside + data
