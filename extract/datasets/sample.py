"""One image of a data set: where its bytes are, and what is known about it."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import xxhash

from extract.datasets.reading import patiently, read_range
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
        file = self.file
        if self.size == 0:
            return b""
        if isinstance(file, Path):
            return patiently(lambda: read_range(file, self.offset, self.size), str(self))
        encoded = file.read(self.offset, self.size)
        if self.digest is not None and xxhash.xxh3_128_digest(encoded) != self.digest:
            raise BeyondClsError(f"{self} has changed since its tar was opened; run again")
        return encoded

    def __str__(self) -> str:
        return f"{self.id!r} in {self.file}"

    def without_path(self, text: str) -> str:
        """A message about this sample with the name of its file alone: stores hold no paths of a machine."""
        return text.replace(str(self.file), self.file.name)
