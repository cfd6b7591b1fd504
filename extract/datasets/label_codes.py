"""What the values of a label map stand for: indices or colours to labels, exactly; a value that is not known is an error."""

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Protocol

import numpy as np
from jaxtyping import Int16, Int64
from PIL import Image

from extract.datasets.listed import lines, parsing
from store.truths.reading import VOID

UNKNOWN = -2
LOSSY = ("JPEG", "MPO", "WEBP")  # formats whose values are not those that were saved
INDEX_MODES = ("1", "L", "P", "I", "I;16", "I;16B", "I;16L")
BITS = 16  # of an index, at most


class Codes(Protocol):
    """How label maps of a data set are written."""

    def labels(self, image: Image.Image) -> Int16[np.ndarray, "h w"]:
        """The label of each pixel, -1 void.

        Raises:
            ValueError: a value stands for nothing; says which were expected.
        """


class Indices:
    """Values of a greyscale or palette image.

    Args:
        labels: of each value; VOID for those that stand for nothing.
    """

    def __init__(self, labels: Mapping[int, int]):
        self._known = sorted(labels)
        self._table = np.full(1 << BITS, UNKNOWN, np.int16)
        self._table[self._known] = [labels[value] for value in self._known]

    @classmethod
    def counted(cls, n_classes: int, first: int = 0, void: Collection[int] = ()) -> "Indices":
        """Classes by number, the first of them at `first`."""
        return cls({first + label: label for label in range(n_classes)} | dict.fromkeys(void, VOID))

    def labels(self, image: Image.Image) -> Int16[np.ndarray, "h w"]:
        if image.mode not in INDEX_MODES:
            raise ValueError(f"is no index image (PIL's mode {image.mode}): a number for each pixel was expected, not a colour")
        values = np.asarray(image)
        if values.dtype.itemsize > 2 and (values.min() < 0 or values.max() >= 1 << BITS):
            raise ValueError(f"has values {values.min()} to {values.max()}, expected {_ranges(self._known)}")
        labels = self._table[values.astype(np.uint16)]
        if (wrong := labels == UNKNOWN).any():
            raise ValueError(f"has the value {values[wrong][0]} in {wrong.sum()} pixels, expected {_ranges(self._known)}")
        return labels


class Colours:
    """Colours of an RGB image.

    Args:
        labels: of each colour, as `code` gives it; VOID for those that stand for nothing.
    """

    def __init__(self, labels: Mapping[int, int]):
        self._codes = np.array(sorted(labels), np.int64)
        self._labels = np.array([labels[code] for code in self._codes.tolist()], np.int16)

    def labels(self, image: Image.Image) -> Int16[np.ndarray, "h w"]:
        if image.mode not in ("RGB", "RGBA", "P", "L"):
            raise ValueError(f"is no colour image (PIL's mode {image.mode})")
        values = codes_of(np.asarray(image.convert("RGB")))
        at = np.searchsorted(self._codes, values).clip(max=len(self._codes) - 1)
        if (wrong := self._codes[at] != values).any():
            value = int(values[wrong][0])
            colour = [value & 255, value >> 8 & 255, value >> 16]
            raise ValueError(f"has the colour {colour} (number {value}) in {wrong.sum()} pixels, which is in no list")
        return self._labels[at]


def codes_of(pixels: np.ndarray) -> Int64[np.ndarray, "..."]:
    """Red + 256 green + 65536 blue, as COCO numbers segments."""
    return pixels[..., 0].astype(np.int64) | pixels[..., 1].astype(np.int64) << 8 | pixels[..., 2].astype(np.int64) << 16


def read_colours(file: Path) -> tuple[list[str], Colours]:
    """Classes of a table of colours, in its order, and their colours.

    Each line is `R G B NAME` (spaces, tabs or commas between them); a class may have several colours. The name `void` stands
    for pixels without class; lines that begin with # do not count.

    Raises:
        DataError: the file is missing, or a line is something else.
    """
    classes: list[str] = []
    labels: dict[int, int] = {}
    with parsing(file, "lines R G B NAME"):
        for line in lines(file):
            if line.startswith("#"):
                continue
            if (matched := re.fullmatch(r"(\d{1,3})[\s,]+(\d{1,3})[\s,]+(\d{1,3})[\s,]+(\S.*)", line, re.ASCII)) is None:
                raise ValueError(f"line {line[:80]!r} is no colour with a name")
            colour = np.array([int(part) for part in matched.groups()[:3]])
            if colour.max() > 255:
                raise ValueError(f"line {line[:80]!r} has a value above 255")
            name, code = matched[4].strip(), int(codes_of(colour[None])[0])
            if code in labels:
                raise ValueError(f"colour {colour.tolist()} appears twice")
            if name.lower() != "void" and name not in classes:
                classes.append(name)
            labels[code] = VOID if name.lower() == "void" else classes.index(name)
        if not classes:
            raise ValueError("no class")
    return classes, Colours(labels)


def _ranges(values: list[int]) -> str:
    """`0 to 11, 255`."""
    starts = [value for value in values if value - 1 not in values]
    ends = [value for value in values if value + 1 not in values]
    return ", ".join(f"{a} to {b}" if a != b else str(a) for a, b in zip(starts, ends, strict=True))
