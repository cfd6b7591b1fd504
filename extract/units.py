"""Computing units of a feature set: the arrays of neighbouring images."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from extract.annotations import ANNOTATIONS
from extract.copies import Copies
from extract.datasets import DataError
from extract.encoders import Encoded
from extract.layouts import arrays_by_name, codec_of, view_of
from extract.requests import OnError, Request
from extract.views import Crop
from store import ArrayLayout, BeyondClsError
from store.codecs import SCALE
from store.places.aligned import aligned_zeros


@dataclass(frozen=True)
class Decoded:
    """An image ready for the encoder, or what was wrong with it."""

    views: dict[int, tuple[Tensor, Crop]]
    size: tuple[int, int]  # height and width of the original, pixels
    problem: str | None = None


@dataclass(frozen=True)
class Unit:
    """Rows of the set, and the names of their arrays to compute; annotations are not among them."""

    number: int
    rows: Sequence[int]
    names: Sequence[str]

    @property
    def views(self) -> list[int]:
        """Views of which it has arrays."""
        return sorted({view for name in self.names if (view := view_of(name)) is not None})


def _describes_images(name: str) -> bool:
    """Whether an array is of images, but not of annotations."""
    return name.startswith("images/") and name not in ANNOTATIONS


@dataclass
class Units:
    """Computes units of a request; `decoders` prepare images one batch ahead.

    The other fields are those of `extract.run.extract`. Where memory runs out, batches are halved from there on.
    """

    request: Request
    layouts: Sequence[ArrayLayout]
    batch_size: int
    decoders: ThreadPoolExecutor
    on_error: OnError
    progress: Callable[[int], None]
    warn: Callable[[str], None] = field(default=lambda message: None)

    def __post_init__(self) -> None:
        self.encoder, self.images = self.request.encoder, self.request.images
        self._copies = Copies(self.encoder.device)

    def compute(self, units: Iterable[Unit]) -> Iterator[tuple[Unit, dict[str, np.ndarray], list[dict[str, Any]]]]:
        """Each unit with its arrays by name, as they are stored, and notes on invalid rows, whose features are zero.

        The next is taken from `units` before the last batch of one is computed: its first images are decoded meanwhile.
        """
        arrays: dict[str, np.ndarray] = {}
        notes: list[dict[str, Any]] = []
        for unit, first, batch in self._batches(units):
            if first == 0:
                arrays, notes = self._zeros(unit), []
            self._put(unit, first, batch, arrays, notes)
            if first + len(batch) == len(unit.rows):
                self._copies.wait()
                yield unit, {name: arrays[name] for name in unit.names}, notes

    def _zeros(self, unit: Unit) -> dict[str, np.ndarray]:
        """The arrays of a unit, and those on its images that every unit has."""
        n = len(unit.rows)
        images = {a.name: np.zeros((n, *a.shape[1:]), a.dtype) for a in self.layouts if _describes_images(a.name)}
        requested = {a.name: aligned_zeros((n, *a.shape[1:]), a.dtype) for a in self.layouts if a.name in unit.names}
        return {**images, **requested}

    def _put(
        self,
        unit: Unit,
        first: int,
        batch: Sequence[Decoded],
        arrays: dict[str, np.ndarray],
        notes: list[dict[str, Any]],
    ) -> None:
        """Put a batch in its place, from row `first` of the unit on."""
        views_to_encode = {view_of(name) for name in unit.names if not name.startswith("images/")}
        valid = []
        for i, image in enumerate(batch, first):
            sample = self.images.samples[unit.rows[i]]
            arrays["images/size"][i] = image.size
            arrays["images/valid"][i] = image.problem is None
            for view, (_, crop) in image.views.items():
                arrays[f"images/crop/view{view}"][i] = crop.box
                arrays[f"images/flip/view{view}"][i] = crop.flip
            if image.problem is None:
                valid.append(i)
            elif self.on_error == "raise":
                raise DataError(f"{image.problem}\nmend the data, or go on with --on-error record")
            else:
                notes.append({"row": unit.rows[i], "id": sample.id, "problem": sample.without_path(image.problem)})
        for view in unit.views if valid else ():
            if view in views_to_encode:
                self._encode([batch[i - first].views[view][0] for i in valid], view, valid, unit.names, arrays)
        self.progress(len(batch))

    def _encode(
        self, images: Sequence[Tensor], view: int, rows: Sequence[int], names: Sequence[str], arrays: dict[str, np.ndarray]
    ) -> None:
        """Put the features of some images in their rows."""
        begin = 0
        while begin < len(images):
            batch = slice(begin, begin + self.batch_size)
            stacked = torch.stack(list(images[batch]))
            encoded = self._forward(stacked)
            if encoded is None:
                continue  # with a smaller batch
            begin = batch.stop
            self._copies.run(
                partial(self._keep, arrays_by_name(encoded, view, self.request.numbered), rows[batch], names, arrays)
            )

    def _keep(
        self, features: dict[str, Tensor], rows: Sequence[int], names: Sequence[str], arrays: dict[str, np.ndarray]
    ) -> None:
        for name, values in features.items():
            # One of the two arrays of a codec with scales may be there already.
            if name in names or name + SCALE in names:
                for end, stored in self._to_stored(values, name).items():
                    if name + end in names:
                        arrays[name + end][list(rows)] = stored

    def _forward(self, images: Tensor) -> Encoded | None:
        """Features of some images; None, and a smaller `batch_size`, if memory did not suffice."""
        try:
            return self.request.encode(images)
        except (torch.OutOfMemoryError, RuntimeError) as error:
            if not isinstance(error, torch.OutOfMemoryError) and "can't allocate memory" not in str(error):
                raise
            if len(images) == 1:
                raise BeyondClsError(
                    f"memory does not suffice for one image through {self.encoder.name}; "
                    "stop what else uses it, or give --amp bf16, fewer --blocks, or another --device"
                ) from error
        self.batch_size = len(images) // 2  # outside of `except`, whose traceback holds on to the memory
        if self.encoder.device.type == "cuda":
            torch.cuda.empty_cache()
        self.warn(f"out of memory: going on with batches of {self.batch_size}")
        return None

    def _batches(self, units: Iterable[Unit]) -> Iterator[tuple[Unit, int, list[Decoded]]]:
        """Batches of decoded images with their unit and the position of their first image in it, one batch ahead."""
        ahead: tuple[Unit, int, list[Future[Decoded]]] | None = None
        for unit in units:
            size = self.batch_size
            for first in range(0, len(unit.rows), size):
                rows, views = unit.rows[first : first + size], unit.views
                decoding = [self.decoders.submit(self._decode, row, views) for row in rows]
                if ahead is not None:
                    yield *ahead[:2], [future.result() for future in ahead[2]]
                ahead = unit, first, decoding
        if ahead is not None:
            yield *ahead[:2], [future.result() for future in ahead[2]]

    def _decode(self, row: int, views: Sequence[int]) -> Decoded:
        sample = self.images.samples[row]
        if sample.problem:
            return Decoded({}, (0, 0), f"{sample}: {sample.problem}")
        try:
            image = self.images.image(row)
        except DataError as error:
            return Decoded({}, (0, 0), str(error))
        return Decoded({view: self.encoder.views.cut(image, sample.id, view) for view in views}, (image.height, image.width))

    def _to_stored(self, values: Tensor, name: str) -> dict[str, np.ndarray]:
        """Values as they are stored, by the suffix of the arrays' names. Never turns a finite value into an infinite one."""
        if not values.isfinite().all():
            raise BeyondClsError(f"{self.encoder.name} gives NaN or Inf in {name}; its weights or its input are broken")
        codec = codec_of(name, self.request.dtype)
        codec.check(values, name)
        stored = codec.encode(values.float())
        dtypes = {end: dtype for end, (_, dtype) in codec.parts(tuple(values.shape)).items()}
        return {end: part.cpu().contiguous().view(torch.uint8).numpy().view(dtypes[end]) for end, part in stored.items()}
