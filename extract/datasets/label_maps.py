"""Label maps in files next to the images: read once, compared with their images, kept as run lengths; what a value stands for
is exact, and one that is not known is an error.
"""

import io
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int16, Int64
from PIL import Image

from extract.datasets.image_set import ImageSet
from extract.datasets.listed import lines, parsing
from extract.datasets.pixels import ROOM, readable
from extract.datasets.reading import Damage, content_of, decode_bytes, opening_bar
from extract.datasets.sample import DataError, Sample
from extract.datasets.truths import Truths
from store import BeyondClsError
from store.truths import rle
from store.truths.reading import VOID, Segment

VOID_INDEX = 255  # of label maps whose indices are counted from 0
UNKNOWN = -2
LOSSY = ("JPEG", "MPO", "WEBP")  # formats whose values are not those that were saved
INDEX_MODES = ("1", "L", "P", "I", "I;16", "I;16B", "I;16L")
BITS = 16  # of an index, at most


class Indices:
    """Values of a greyscale or palette image, and the label of each; VOID for those that stand for nothing."""

    def __init__(self, labels: Mapping[int, int]):
        self._known = sorted(labels)
        self._table = np.full(1 << BITS, UNKNOWN, np.int16)
        self._table[self._known] = [labels[value] for value in self._known]

    @classmethod
    def counted(cls, n_classes: int, first: int = 0, void: Collection[int] = (VOID_INDEX,)) -> "Indices":
        """Classes by number, the first of them at `first`."""
        return cls({first + label: label for label in range(n_classes)} | dict.fromkeys(void, VOID))

    def labels(self, image: Image.Image) -> Int16[np.ndarray, "h w"]:
        """The label of each pixel, -1 void; ValueError, with those that were expected, where a value stands for nothing."""
        if image.mode not in INDEX_MODES:
            raise ValueError(f"is no index image (PIL's mode {image.mode}): a number for each pixel was expected, not a colour")
        values = np.asarray(image)
        if values.dtype.itemsize > 2 and (values.min() < 0 or values.max() >= 1 << BITS):
            raise ValueError(f"has values {values.min()} to {values.max()}, expected {self._format_ranges()}")
        labels = self._table[values.astype(np.uint16)]
        if (wrong := labels == UNKNOWN).any():
            raise ValueError(f"has the value {values[wrong][0]} in {wrong.sum()} pixels, expected {self._format_ranges()}")
        return labels

    def _format_ranges(self) -> str:
        """`0 to 11, 255`."""
        starts = [value for value in self._known if value - 1 not in self._known]
        ends = [value for value in self._known if value + 1 not in self._known]
        return ", ".join(f"{a} to {b}" if a != b else str(a) for a, b in zip(starts, ends, strict=True))


class Colours:
    """Colours of an RGB image by `codes_of`, and the label of each, as for `Indices`."""

    def __init__(self, labels: Mapping[int, int]):
        self._codes = np.array(sorted(labels), np.int64)
        self._labels = np.array([labels[code] for code in self._codes.tolist()], np.int16)

    def labels(self, image: Image.Image) -> Int16[np.ndarray, "h w"]:
        """As for `Indices`."""
        if image.mode not in ("RGB", "RGBA", "P", "L"):
            raise ValueError(f"is no colour image (PIL's mode {image.mode})")
        values = codes_of(np.asarray(image.convert("RGB")))
        at = np.searchsorted(self._codes, values).clip(max=len(self._codes) - 1)
        if (wrong := self._codes[at] != values).any():
            value = int(values[wrong][0])
            colour = [value & 255, value >> 8 & 255, value >> 16]
            raise ValueError(f"has the colour {colour} (number {value}) in {wrong.sum()} pixels, which is in no list")
        return self._labels[at]


Codes = Indices | Colours


def codes_of(pixels: np.ndarray) -> Int64[np.ndarray, "..."]:
    """Red + 256 green + 65536 blue, as COCO numbers segments."""
    return pixels[..., 0].astype(np.int64) | pixels[..., 1].astype(np.int64) << 8 | pixels[..., 2].astype(np.int64) << 16


def read_colours(file: Path) -> tuple[list[str], Colours]:
    """Classes of a table of colours, in its order, and their colours.

    Each line is `R G B NAME` (spaces, tabs or commas between them); a class may have several colours. The name `void` stands
    for pixels without class; lines that begin with # do not count.
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


class MapRead(NamedTuple):
    """A label map that was read: its height and width, its segments by ascending label; or what is wrong with it."""

    size: tuple[int, int] = (0, 0)
    segments: tuple[Segment, ...] = ()
    problem: str | None = None


class LabelMaps(Truths):
    """Label maps of images.

    Args:
        classes: names in order of labels.
        files: label map of each image, by its id.
        codes: what its values stand for, of all or by id.
    """

    def __init__(self, classes: Sequence[str], files: Mapping[str, Path], codes: Codes | Mapping[str, Codes]):
        super().__init__(list(classes), self._reader)
        self._files, self._codes = files, codes
        self._read: dict[str, MapRead] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Without maps that were read: another process reads those that it needs."""
        return {**self.__dict__, "_read": {}}

    def open(self, samples: Sequence[Sample]) -> list[MapRead]:
        """The maps of images, read on threads; what was read is kept."""
        todo = [sample for sample in samples if sample.id not in self._read]
        with ThreadPoolExecutor(os.cpu_count()) as threads, opening_bar("label maps", len(todo), "maps") as progress:
            for sample, one in zip(todo, threads.map(self._open, todo), strict=True):
                self._read[sample.id] = one
                progress(1)
        return [self._read[sample.id] for sample in samples]

    def _reader(self, samples: Sequence[Sample]) -> Callable[[Sample], Sequence[Segment]]:
        self.open(samples)

        def segments(sample: Sample) -> Sequence[Segment]:
            if problem := self._read[sample.id].problem:
                raise ValueError(problem)
            return self._read[sample.id].segments

        return segments

    def label_map(self, sample: Sample) -> Int16[np.ndarray, "h w"]:
        """The label of each pixel, -1 void; empty where the map cannot be read."""
        [one] = self.open([sample])
        drawn = np.full(one.size[::-1], VOID, np.int16)
        for segment in one.segments:
            rle.draw(segment.counts, segment.label, drawn)
        return drawn.T

    def labels(self, sample: Sample) -> Int16[np.ndarray, "h w"]:
        """The map of an image as it is given; raises ValueError, as `read_map`."""
        return read_map(self._files[sample.id], self._codes[sample.id] if isinstance(self._codes, Mapping) else self._codes)

    def _open(self, sample: Sample) -> MapRead:
        try:
            labels = self.labels(sample)
            if not sample.problem and (size := image_size(sample)) not in (None, labels.shape):
                raise ValueError(f"has {sides(labels.shape)} pixels (width x height), its image {sides(size)}")
        except BeyondClsError:  # the disk's fault, not the map's
            raise
        except (ValueError, TypeError, OSError) as error:
            name = f" {self._files[sample.id].name}" if sample.id in self._files else ""
            return MapRead(problem=f"its label map{name} {error}")
        return MapRead(labels.shape, tuple(Segment(label, counts) for label, counts in rle.encode_labels(labels)))


def read_map(file: Path, codes: Codes) -> Int16[np.ndarray, "h w"]:
    """A label map from its file; ValueError, whose message begins after its name, where it is missing or damaged, or has values
    that stand for nothing.
    """
    encoded = content_of(file)
    if encoded is None:
        raise ValueError("is not there")
    with ExitStack() as held:
        try:
            image = decode_bytes(partial(_load_image, held=held), encoded, str(file))
        except Damage as error:
            raise ValueError(f"cannot be decoded: {error}") from error
        return labels_in(image, codes)


def _load_image(encoded: bytes, held: ExitStack) -> Image.Image:
    image = Image.open(io.BytesIO(encoded), formats=readable()[0])
    with ExitStack() as room:
        room.enter_context(ROOM.of(image))
        image.load()
        held.enter_context(room.pop_all())
    return image


def labels_in(image: Image.Image, codes: Codes) -> Int16[np.ndarray, "h w"]:
    """As `Indices.labels`, of a picture that must not be of a lossy format."""
    if image.format in LOSSY:
        raise ValueError(f"is a {image.format}, whose values are not those that were saved; PNG was expected")
    return codes.labels(image)


def image_size(sample: Sample) -> tuple[int, int] | None:
    """Height and width of an image; None where its header cannot be read, which decoding it reports."""
    source: Any = sample.file if type(sample) is Sample else io.BytesIO(sample.read())
    try:
        with Image.open(source) as image:
            return image.height, image.width
    except Exception:
        return None


def sides(size: Sequence[int]) -> str:
    """`480 x 360`, from height and width."""
    return f"{size[1]} x {size[0]}"


def segmented(
    source: str,
    samples: Sequence[Sample],
    maps: LabelMaps,
    *,
    unlabelled: Sequence[int] = (),
    problems: Sequence[str] = (),
    truths: Mapping[str, Truths] | None = None,
) -> ImageSet:
    """Images with label maps; their labels are the classes that their maps show.

    Args:
        samples: whose labels are left out.
        unlabelled: labels of maps that are no labels of images, as the background; they come before all others.
        problems: as for `ImageSet`.
        truths: others.

    Raises:
        DataError: as `ImageSet`.
    """
    if not samples:
        raise DataError(f"{source} has neither images nor label maps of this split; expected the folders that its form names")
    n = len(unlabelled)
    assert list(unlabelled) == list(range(n)), unlabelled
    labelled = [
        replace(
            sample,
            labels=tuple(segment.label - n for segment in one.segments if segment.label >= n),
            problem=sample.problem or one.problem,
        )
        for sample, one in zip(samples, maps.open(samples), strict=True)
    ]
    by_name: dict[str, Truths] = {"segmentation": maps, **(truths or {})}
    return ImageSet(source, labelled, maps.classes[n:], problems, multilabel=True, truths=by_name)
