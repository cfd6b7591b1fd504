"""CIFAR-10 and CIFAR-100, in the binary version or as torchvision keeps them (the python version), whose pickles are read
without running any of their code.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from extract.datasets.form import Published
from extract.datasets.image_set import ImageSet
from extract.datasets.listed import lines, parsing
from extract.datasets.sample import DataError, Sample, read_range
from extract.plain_pickle import PlainPickle, UnknownName

SIDE = 32
PIXELS_NBYTES = 3 * SIDE * SIDE
PPM = f"P6 {SIDE} {SIDE} 255\n".encode()  # what PIL reads as plain pixels


@dataclass(frozen=True)
class PlanarImage(Sample):
    """An image whose 3072 bytes in the file are red, green and blue planes; it reads as an encoded image (PPM)."""

    def read(self) -> bytes:
        assert isinstance(self.file, Path), self.file
        planes = np.frombuffer(read_range(self.file, self.offset, PIXELS_NBYTES), np.uint8)
        return PPM + planes.reshape(3, SIDE * SIDE).T.tobytes()  # [pixel, channel]


class Array:
    """An array, or its dtype: keeps the state, and does nothing with it."""

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


ARRAYS = dict.fromkeys(
    ("numpy.core.multiarray._reconstruct", "numpy._core.multiarray._reconstruct", "numpy.ndarray", "numpy.dtype"), Array
)


def plain_batch(file: Path) -> dict[bytes, Any]:
    """The dictionary in a file of the python version, or a DataError; keys and texts are bytes, arrays are `Array`."""
    try:
        with file.open("rb") as source:
            batch = PlainPickle(source, file.stat().st_size, ARRAYS, {Array: Array.take}, text=bytes).load()
    except UnknownName as error:
        raise DataError(f"{file}: it names {error}, which CIFAR's files do not; do not use this file") from None
    except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
        raise DataError(f"{file} cannot be read ({error!s}); unpack the data set again") from error
    if not isinstance(batch, dict):
        raise DataError(f"{file} holds {type(batch).__name__}, expected a dictionary; unpack the data set again")
    return {key.encode() if isinstance(key, str) else key: value for key, value in batch.items()}


@dataclass(frozen=True)
class Cifar:
    """Where each version keeps its contents.

    Attributes:
        files: of each split, in the binary version (with suffix .bin) and in the python version alike.
        n_label_bytes: before the pixels in the binary version; the last of them is the label.
        names: file of the class names, in the binary and in the python version, with their key there.
        key: of the labels in the python version.
    """

    binary: str
    python: str
    files: dict[str, tuple[str, ...]]
    n_label_bytes: int
    names: tuple[str, str, str]
    key: str

    def open(self, root: Path, split: str) -> ImageSet:
        """Ids number the images of a split, `train/00000`, in the order of its files. Either version gives the same digest."""
        if (folder := root / self.binary).is_dir():
            names = lines(folder / self.names[0])
            batches = [self._read_records(folder / f"{name}.bin") for name in self.files[split]]
        else:
            folder = root / self.python
            metadata = plain_batch(folder / self.names[1])
            with parsing(folder / self.names[1], "class names"):
                names = [name.decode() for name in metadata[self.names[2].encode()]]
            batches = [self._read_pickle(folder / name) for name in self.files[split]]
        samples: list[Sample] = []
        for file, labels, offsets in batches:
            for label, offset in zip(labels, offsets, strict=True):
                samples.append(PlanarImage(f"{split}/{len(samples):05d}", (label,), file, offset, len(PPM) + PIXELS_NBYTES))
        return ImageSet(str(root), samples, names)

    def _read_records(self, file: Path) -> tuple[Path, list[int], Sequence[int]]:
        """Labels of a file of records, and where their pixels begin."""
        if not file.is_file():
            raise DataError(f"{file} is missing; unpack the binary version whole")
        size, record = file.stat().st_size, self.n_label_bytes + PIXELS_NBYTES
        if not size or size % record:
            raise DataError(f"{file} has {size} bytes, expected a multiple of {record}; it is cut: get it again")
        records = np.memmap(file, np.uint8, "r").reshape(-1, record)
        return file, records[:, self.n_label_bytes - 1].tolist(), range(self.n_label_bytes, size, record)

    def _read_pickle(self, file: Path) -> tuple[Path, list[int], Sequence[int]]:
        """The same of a file of the python version, in which the pixels are stored one after the other, unencoded."""
        batch = plain_batch(file)
        with parsing(file, f"a dictionary with data and {self.key}"):
            labels, pixels = list(map(int, batch[self.key.encode()])), batch[b"data"].content
            if len(pixels) != len(labels) * PIXELS_NBYTES:
                raise ValueError(f"{len(pixels)} bytes for {len(labels)} labels")
            begin = file.read_bytes().index(pixels)
        return file, labels, range(begin, begin + len(pixels), PIXELS_NBYTES)

    def published(self) -> Published:
        return Published(self.open, tuple(self.files), (self.binary, self.python))


CIFAR10 = Cifar(
    binary="cifar-10-batches-bin",
    python="cifar-10-batches-py",
    files={"train": tuple(f"data_batch_{i}" for i in range(1, 6)), "test": ("test_batch",)},
    n_label_bytes=1,
    names=("batches.meta.txt", "batches.meta", "label_names"),
    key="labels",
).published()
CIFAR100 = Cifar(
    binary="cifar-100-binary",
    python="cifar-100-python",
    files={"train": ("train",), "test": ("test",)},
    n_label_bytes=2,  # the coarse one, then the fine one, which is the label
    names=("fine_label_names.txt", "meta", "fine_label_names"),
    key="fine_labels",
).published()
