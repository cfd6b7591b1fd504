"""A list of images in fixed order, each a range of bytes in a file."""

import io
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import xxhash
from PIL import Image

from store import BeyondClsError


class DataError(BeyondClsError):
    """Images, labels or tars that are missing, cut or unreadable."""


@dataclass(frozen=True)
class Sample:
    """One image: `size` bytes at `offset` of `file`. `label` is None where it has none; `problem` says what is wrong."""

    id: str
    label: int | None
    file: Path
    offset: int
    size: int
    problem: str | None = None

    def read(self) -> bytes:
        """The encoded image, [size] bytes."""
        with self.file.open("rb") as source:
            return os.pread(source.fileno(), self.size, self.offset)

    def __str__(self) -> str:
        return f"{self.id!r} in {self.file}"

    def without_path(self, text: str) -> str:
        """A message about this sample with the name of its file alone: stores hold no paths of a machine."""
        return text.replace(str(self.file), self.file.name)


def read_class_names(file: Path) -> list[str]:
    """Names of the classes in the order of the labels, one a line; empty lines do not count."""
    return [line.strip() for line in file.read_text().splitlines() if line.strip()]


class ImageSet:
    """Samples in the order of their rows, and what is wrong with them.

    Args:
        source: what the user named.
        samples: in order.
        classes: names of the classes by label, if known.
        problems: of the whole set (a cut tar), beside those of single samples.
    """

    def __init__(
        self, source: str, samples: Iterable[Sample], classes: Sequence[str] | None = None, problems: Sequence[str] = ()
    ):
        self.source, self.samples, self.classes, self.problems = source, list(samples), classes, list(problems)
        if not self.samples and not self.problems:
            raise DataError(f"{source} has no images; expected .jpg, .jpeg, .png, .webp, .bmp or .ppm")
        seen: dict[str, Sample] = {}
        for sample in self.samples:
            if sample.id in seen:
                raise DataError(
                    f"id {sample.id!r} stands twice, in {seen[sample.id].file} and {sample.file}; ids must be unique"
                )
            seen[sample.id] = sample
            if classes is not None and sample.label is not None and sample.label >= len(classes):
                raise DataError(
                    f"{sample} has label {sample.label}, but there are {len(classes)} class names; labels count from 0"
                )

    def __len__(self) -> int:
        return len(self.samples)

    def all_problems(self) -> list[str]:
        """What is wrong, one line each; empty for a sound set."""
        return [*self.problems, *(f"{s}: {s.problem}" for s in self.samples if s.problem)]

    @cached_property
    def digest(self) -> str:
        """XXH3-128 over id, label and bytes of every image in order: the same for a folder and for tars of the same images."""
        return self.digest_of(len(self))

    def digest_of(self, n: int) -> str:
        """The digest that a set of the first `n` images has."""
        digest = xxhash.xxh3_128()
        for sample in self.samples[:n]:
            digest.update(f"{sample.id}\0{sample.label}\0{sample.size}\0".encode())
            digest.update(xxhash.xxh3_128_digest(sample.read()))
        return digest.hexdigest()

    def image(self, row: int) -> Image.Image:
        """A decoded image, RGB.

        Raises: DataError: its bytes are no whole image; names id and file.
        """
        sample = self.samples[row]
        try:
            image = Image.open(io.BytesIO(sample.read()))
            image.load()
            return image.convert("RGB")
        except Exception as error:  # PIL raises many kinds, none of which a damaged file may let through unnamed
            raise DataError(f"{sample} cannot be decoded: {error}") from error
