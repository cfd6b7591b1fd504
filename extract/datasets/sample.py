"""One image of a data set: where its bytes are, and what is known about it."""

import math
import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import xxhash

from extract.datasets.reading import CHANGED, patiently
from extract.datasets.remote import RemoteFile
from store import BeyondClsError


class DataError(BeyondClsError):
    """Images, labels or tars that are missing, cut or unreadable."""


class Box(NamedTuple):
    """A box in pixels of the original image, corners as the data set publishes them, and its class (-1 if unknown)."""

    x0: float
    y0: float
    x1: float
    y1: float
    label: int = -1

    @property
    def problem(self) -> str | None:
        """What is wrong with it; a box without area is kept, as published sets have some."""
        corners = self[:4]
        if all(map(math.isfinite, corners)) and 0 <= self.x1 >= self.x0 and 0 <= self.y1 >= self.y0:
            return None
        return f"has box {tuple(corners)}, expected x0 <= x1 and y0 <= y1 in pixels, not left of or above the image"


def read_range(file: Path, offset: int, nbytes: int) -> bytes:
    """`nbytes` bytes of a file; OSError where they cannot be read, BeyondClsError where it has become shorter."""
    content = b""
    with file.open("rb") as source:
        while len(content) < nbytes and (more := os.pread(source.fileno(), nbytes - len(content), offset + len(content))):
            content += more
    if len(content) < nbytes:
        raise BeyondClsError(f"{file} ends after {offset + len(content)} bytes, expected {offset + nbytes}; {CHANGED}")
    return content


@dataclass(frozen=True, slots=True)
class Sample:
    """One image: `size` bytes at `offset` of `file`.

    Attributes:
        labels: its classes; one in a single-label set, any number in a multi-label set; None where it should have one but
            does not.
        problem: what is wrong with it. A missing image has `size` 0 and says so here.
        boxes: around objects.
        digest: XXH3-128 of its bytes, if they were read already; it reveals a remote file that has changed since.
    """

    id: str
    labels: tuple[int, ...] | None
    file: Path | RemoteFile
    offset: int
    size: int
    problem: str | None = None
    boxes: tuple[Box, ...] = ()
    digest: bytes | None = None

    @property
    def label(self) -> int | None:
        """The class of an image of a single-label set; None where it has none."""
        return self.labels[0] if self.labels else None

    def read(self) -> bytes:
        """The encoded image; empty where it is missing.

        Raises:
            BeyondClsError: it cannot be read, which says nothing about the image; or its file has changed.
        """
        if self.size == 0:
            return b""
        if isinstance(self.file, Path):
            return patiently(partial(read_range, self.file, self.offset, self.size), str(self))
        encoded = self.file.read(self.offset, self.size)
        if self.digest is not None and xxhash.xxh3_128_digest(encoded) != self.digest:
            raise BeyondClsError(f"{self} has changed since its tar was opened; run again")
        return encoded

    def __str__(self) -> str:
        return f"{self.id!r} in {self.file}"

    def without_path(self, text: str) -> str:
        """A message about this sample with the name of its file alone: stores hold no paths of a machine."""
        return text.replace(str(self.file), self.file.name)
