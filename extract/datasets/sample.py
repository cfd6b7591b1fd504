"""One image of a data set: where its bytes are, and what is known about it."""

import math
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xxhash
from jaxtyping import Bool, Float64, Int, UInt8

from extract.datasets.reading import CHANGED, RemoteFile, patiently
from store import BeyondClsError
from store.format.classes import are_identifiers


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
    with file.open("rb") as source:
        source.seek(offset)
        content = source.read(nbytes)
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


ENCODING = "utf-8", "surrogateescape"  # names of files need not be UTF-8
INTEGERS = ("file", "offset", "size", "labels", "label_ends", "box_labels", "box_ends")
COLUMNS = (*INTEGERS, "has_labels", "boxes")
UNKNOWN = -1  # class of a box
NEAR = 1 << 16  # bytes between two images that are read with them rather than left out
READ_NBYTES = 1 << 22  # that are read at once, but for the end of the last image


def narrow(numbers: Sequence[int] | Int[np.ndarray, "N"]) -> Int[np.ndarray, "N"]:
    """Whole numbers in the smallest type that holds them all."""
    wide = np.asarray(numbers, np.int64)
    return wide.astype(np.min_scalar_type(min(int(wide.min(initial=0)), -1 - int(wide.max(initial=0)))))


class Strings(Sequence[str]):
    """Strings one behind the other: `text` of all, encoded, and where each ends in it, in bytes."""

    def __init__(self, text: UInt8[np.ndarray, "T"], ends: Int[np.ndarray, "N"]):
        self.text, self.ends = text, ends

    @classmethod
    def of(cls, strings: Iterable[str]) -> "Strings":
        text, ends = bytearray(), array("q")
        for string in strings:
            text += string.encode(*ENCODING)
            ends.append(len(text))
        return cls(np.frombuffer(text, np.uint8), narrow(ends))

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, row: Any) -> Any:
        if isinstance(row, slice):
            return [self[i] for i in range(len(self))[row]]
        row = range(len(self))[row]
        return self.text[self.ends[row - 1] if row else 0 : self.ends[row]].tobytes().decode(*ENCODING)

    def __iter__(self) -> Iterator[str]:
        begin, text = 0, memoryview(self.text)  # type: ignore[arg-type]
        for end in self.ends.tolist():
            yield str(text[begin:end], *ENCODING)
            begin = end

    @property
    def nbytes(self) -> Int[np.ndarray, "N"]:  # of each
        return np.diff(self.ends, prepend=0)


class Samples(Sequence[Sample]):
    """Samples, made when they are asked for.

    Attributes:
        ids: of the images.
        files: paths or addresses of the files that hold images.
        file: the number among these, by row.
        offset, size: where the image is in it, in bytes.
        has_labels: whether it has labels, which may be none of the classes.
        labels, label_ends: of all images, and where those of each end.
        boxes, box_labels, box_ends: the same for boxes.
        problems: by row.
        others: by row, samples that are more than a range of bytes in a local file.
    """

    file: Int[np.ndarray, "N"]
    offset: Int[np.ndarray, "N"]
    size: Int[np.ndarray, "N"]
    has_labels: Bool[np.ndarray, "N"]
    labels: Int[np.ndarray, "L"]
    label_ends: Int[np.ndarray, "N"]
    boxes: Float64[np.ndarray, "B 4"]
    box_labels: Int[np.ndarray, "B"]
    box_ends: Int[np.ndarray, "N"]

    def __init__(self, ids: Strings, files: Strings, columns: Mapping[str, Any], problems: Mapping[int, str]):
        self.ids, self.files, self.problems = ids, files, dict(problems)
        self.others: dict[int, Sample] = {}
        for name in COLUMNS:
            setattr(self, name, columns[name])

    @property
    def columns(self) -> dict[str, np.ndarray]:  # all that is numbers
        return {name: getattr(self, name) for name in COLUMNS}

    @classmethod
    def of(cls, samples: Iterable[Sample]) -> "Samples":
        """Columns of samples, of which each is forgotten at once."""
        if isinstance(samples, Samples):
            return samples
        numbers = {name: array("q") for name in (*INTEGERS, "ids", "files")}  # of strings, where they end
        ids, files = bytearray(), bytearray()
        has_labels, boxes = bytearray(), array("d")
        problems: dict[int, str] = {}
        others: dict[int, Sample] = {}
        last: Path | RemoteFile | None = None
        for row, sample in enumerate(samples):
            ids += sample.id.encode(*ENCODING)
            numbers["ids"].append(len(ids))
            if sample.file is not last:
                last = sample.file
                files += (last.url if isinstance(last, RemoteFile) else str(last)).encode(*ENCODING)
                numbers["files"].append(len(files))
            if sample.problem:
                problems[row] = sample.problem
            if type(sample) is not Sample or not isinstance(last, Path) or sample.digest is not None:
                others[row] = sample
            for name, number in zip(INTEGERS[:3], (len(numbers["files"]) - 1, sample.offset, sample.size), strict=True):
                numbers[name].append(number)
            has_labels.append(sample.labels is not None)
            numbers["labels"].extend(sample.labels or ())
            numbers["label_ends"].append(len(numbers["labels"]))
            for box in sample.boxes:
                boxes.extend(box[:4])
                numbers["box_labels"].append(box.label)
            numbers["box_ends"].append(len(numbers["box_labels"]))
        columns: dict[str, np.ndarray] = {name: narrow(values) for name, values in numbers.items()}
        columns |= {"has_labels": np.array(has_labels, bool), "boxes": np.array(boxes).reshape(-1, 4)}
        id_strings, file_strings = (
            Strings(np.frombuffer(text, np.uint8), columns[name]) for name, text in (("ids", ids), ("files", files))
        )
        made = cls(id_strings, file_strings, columns, problems)
        made.others = others
        return made

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, row: Any) -> Any:
        if isinstance(row, slice):
            return [self[i] for i in range(len(self))[row]]
        row = range(len(self))[row]
        if row in self.others:
            return self.others[row]
        labels = tuple(self.labels[self._range(self.label_ends, row)].tolist()) if self.has_labels[row] else None
        boxes = self._range(self.box_ends, row)
        return Sample(
            self.ids[row],
            labels,
            Path(self.files[int(self.file[row])]),
            int(self.offset[row]),
            int(self.size[row]),
            self.problems.get(row),
            tuple(map(Box._make, zip(*self.boxes[boxes].T.tolist(), self.box_labels[boxes].tolist(), strict=True))),
        )

    def encoded(self, rows: Sequence[int]) -> Iterator[bytes | memoryview]:
        """The encoded images of some rows; those that are near one another in a file, as in a tar, are read at once.

        Raises:
            BeyondClsError: see `Sample.read`.
        """
        begin = self.offset[rows].astype(np.int64)
        end = begin + self.size[rows]
        is_alone = np.array([row in self.others for row in rows]) | (begin == end)
        gap = begin[1:] - end[:-1]
        is_near = (self.file[rows][1:] == self.file[rows][:-1]) & (gap >= 0) & (gap <= NEAR) & ~is_alone[1:] & ~is_alone[:-1]
        is_near &= begin[1:] // READ_NBYTES == begin[:-1] // READ_NBYTES
        for run in np.split(np.arange(len(rows)), np.flatnonzero(~is_near) + 1):
            first, last = self[rows[run[0]]], run[-1]
            if len(run) == 1:
                yield first.read()
                continue
            nbytes = int(end[last] - first.offset)
            what = f"{first} (and {len(run) - 1} behind it)"
            content = memoryview(patiently(partial(read_range, first.file, first.offset, nbytes), what))
            for i in run:
                yield content[begin[i] - first.offset : end[i] - first.offset]

    @staticmethod
    def _range(ends: Int[np.ndarray, "N"], row: int) -> slice:
        return slice(ends[row - 1] if row else 0, ends[row])

    @property
    def is_sound(self) -> Bool[np.ndarray, "N"]:
        """Whether nothing is wrong with an image, as far as is known before it is decoded."""
        sound = np.ones(len(self), bool)
        sound[list(self.problems)] = False
        return sound

    @property
    def are_in_files(self) -> Bool[np.ndarray, "N"]:
        """Whether an image is a range of bytes of a local file, and no more than that."""
        in_files = self.size > 0
        in_files[list(self.others)] = False
        return in_files

    def numbered(self) -> "tuple[Samples, list[str] | None]":
        """These samples and names of classes, if labels are identifiers, such as 5219173, ordered as numbers."""
        used = np.unique(np.concatenate([self.labels, self.box_labels]))
        used = used[used != UNKNOWN]
        if not are_identifiers(int(used.max(initial=0)), len(used)):
            return self, None

        def new(labels: Int[np.ndarray, "M"]) -> Int[np.ndarray, "M"]:
            return narrow(np.where(labels == UNKNOWN, UNKNOWN, np.searchsorted(used, labels)))

        columns = self.columns | {"labels": new(self.labels), "box_labels": new(self.box_labels)}
        renumbered = Samples(self.ids, self.files, columns, self.problems)
        for row, sample in self.others.items():
            renumbered.others[row] = replace(sample, labels=renumbered[row].labels, boxes=renumbered[row].boxes)
        return renumbered, list(map(str, used.tolist()))
