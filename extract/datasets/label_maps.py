"""Label maps in files beside the images: read once, compared with their images, kept as run lengths."""

import io
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
from jaxtyping import Int16
from PIL import Image

from extract.datasets.formats import readable
from extract.datasets.image_set import ImageSet
from extract.datasets.label_codes import LOSSY, Codes
from extract.datasets.opening import opening_bar
from extract.datasets.pixels import ROOM
from extract.datasets.reading import Damage, content_of, decoded
from extract.datasets.sample import DataError, Sample
from extract.datasets.truths import Truths
from store import BeyondClsError
from store.truths import rle
from store.truths.reading import VOID, Segment

VOID_INDEX = 255  # of label maps whose indices are counted from 0


@dataclass(frozen=True)
class MapRead:
    """A label map that was read: its height and width, its segments by ascending label; or what is wrong with it."""

    size: tuple[int, int] = (0, 0)
    segments: tuple[Segment, ...] = ()
    problem: str | None = None

    @classmethod
    def of(cls, labels: Int16[np.ndarray, "h w"]) -> Self:
        """A map of the label of each pixel, -1 void."""
        return cls(labels.shape, tuple(Segment(label, counts) for label, counts in rle.encode_labels(labels)))


class LabelMaps(Truths):
    """Label maps of images.

    Args:
        classes: names in order of labels.
        files: label map of each image, by its id.
        codes: what its values stand for, of all or by id.
    """

    def __init__(self, classes: Sequence[str], files: Mapping[str, Path], codes: Codes | Mapping[str, Codes]):
        self.classes, self._files, self._codes = list(classes), files, codes
        self._read: dict[str, MapRead] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Without maps that were read: another process reads those that it needs."""
        return {**self.__dict__, "_read": {}}

    def read(self, samples: Sequence[Sample]) -> tuple[list[Sequence[Segment]], list[str]]:
        self.open(samples)
        found = [MapRead() if sample.problem else self._read[sample.id] for sample in samples]
        problems = [f"{s}: {one.problem}" for s, one in zip(samples, found, strict=True) if one.problem]
        return [one.segments for one in found], problems

    def open(self, samples: Sequence[Sample]) -> None:
        """Read the maps of images, on threads; what was read is kept."""
        todo = [sample for sample in samples if sample.id not in self._read]
        with ThreadPoolExecutor(os.cpu_count()) as threads, opening_bar("label maps", len(todo), "maps") as progress:
            for sample, one in zip(todo, threads.map(self._open, todo), strict=True):
                self._read[sample.id] = one
                progress(1)

    def present(self, sample: Sample) -> tuple[int, ...]:
        """Classes that an image shows, ascending; its map was read."""
        return tuple(segment.label for segment in self._read[sample.id].segments)

    def problem(self, sample: Sample) -> str | None:
        """What is wrong with the map of an image; it was read."""
        return self._read[sample.id].problem

    def label_map(self, sample: Sample) -> Int16[np.ndarray, "h w"]:
        """The label of each pixel, -1 void; empty where the map cannot be read."""
        self.open([sample])
        one = self._read[sample.id]
        drawn = np.full(one.size[::-1], VOID, np.int16)
        for segment in one.segments:
            rle.draw(segment.counts, segment.label, drawn)
        return drawn.T

    def _open(self, sample: Sample) -> MapRead:
        file = self._files[sample.id]
        codes = self._codes[sample.id] if isinstance(self._codes, Mapping) else self._codes
        try:
            labels = read_map(file, codes)
            if not sample.problem and (size := image_size(sample)) not in (None, labels.shape):
                raise ValueError(f"has {sides(labels.shape)} pixels (width x height), its image {sides(size)}")
        except BeyondClsError:  # the disk's fault, not the map's
            raise
        except ValueError as error:
            return MapRead(problem=f"its label map {file.name} {error}")
        return MapRead.of(labels)


def read_map(file: Path, codes: Codes) -> Int16[np.ndarray, "h w"]:
    """A label map from its file.

    Raises:
        ValueError: it is missing or damaged, or has values that stand for nothing; a message that begins after its name.
        BeyondClsError: it cannot be read, which says nothing about it; or memory does not suffice.
    """
    encoded = content_of(file)
    if encoded is None:
        raise ValueError("is not there")
    with ExitStack() as held:
        try:
            image = decoded(partial(_loaded, held=held), encoded, str(file))
        except Damage as error:
            raise ValueError(f"cannot be decoded: {error}") from error
        if image.format in LOSSY:
            raise ValueError(f"is a {image.format}, whose values are not those that were saved; PNG was expected")
        return codes.labels(image)


def _loaded(encoded: bytes, held: ExitStack) -> Image.Image:
    image = Image.open(io.BytesIO(encoded), formats=readable()[0])
    with ExitStack() as room:
        room.enter_context(ROOM.of(image))
        image.load()
        held.enter_context(room.pop_all())
    return image


def image_size(sample: Sample) -> tuple[int, int] | None:
    """Height and width of an image; None where its header cannot be read, which decoding it reports."""
    try:
        with Image.open(sample.file) as image:  # type: ignore[arg-type]
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
    maps.open(samples)
    n = len(unlabelled)
    assert list(unlabelled) == list(range(n)), unlabelled
    labelled = [
        replace(
            sample,
            labels=tuple(label - n for label in maps.present(sample) if label >= n),
            problem=sample.problem or maps.problem(sample),
        )
        for sample in samples
    ]
    by_name: dict[str, Truths] = {"segmentation": maps, **(truths or {})}
    return ImageSet(source, labelled, maps.classes[n:], problems, multilabel=True, truths=by_name)
