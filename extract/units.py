"""Computing units of a feature set: the arrays of neighbouring images."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor

from extract.annotations import is_annotation
from extract.batches import Batches
from extract.copies import Buffers, Copies, streams_of
from extract.datasets import DataError
from extract.decoding import Batch, Decoding, Unit
from extract.layouts import arrays_by_name
from extract.requests import Request
from extract.settings import Settings
from extract.stages import Course
from extract.stored import as_array, check, stored_parts
from store import ArrayLayout
from store.places.place import aligned_zeros

Arrays = dict[str, np.ndarray]


class Units:
    """Computes units of a request.

    Args:
        layouts: of all arrays of the set.
        decoders: threads that prepare images, one batch ahead.
        course: what the thread does that calls `compute`.
    """

    def __init__(
        self,
        request: Request,
        layouts: Sequence[ArrayLayout],
        settings: Settings,
        decoders: ThreadPoolExecutor,
        course: Course | None = None,
    ):
        self._request, self._layouts, self._settings = request, layouts, settings
        encoder, streams, course = request.encoder, streams_of(request.encoder.device), course or Course()
        self._buffers = Buffers() if streams is None else Buffers(streams.allocate)
        shape = encoder.config["input_size"]
        self._decoding = Decoding(request.images, encoder.views, decoders, shape, self._buffers, course)
        self._batches = Batches(request, settings.batch_size, settings.warn, streams, course)
        self._copies = Copies(streams, course, self._batches.halve)
        self._has_warned = False  # of images that are not upright
        # Of features, used again: one set is written, one filled, and beside a GPU one waits for its last copies.
        self._memory: deque[Arrays] = deque({} for _ in range(2 if streams is None else 3))

    def compute(self, units: Iterable[Unit]) -> Iterator[tuple[Unit, Arrays, list[dict[str, Any]]]]:
        """Each unit with its arrays by name, as they are stored, and notes on invalid rows, whose features are zero.

        The next is taken from `units` before the last batch of one is computed: its first images are decoded meanwhile. Beside
        a GPU a unit comes once the first batch of the next is being computed. Its arrays are used again when two more
        have been taken.
        """
        arrays: Arrays = {}
        notes: list[dict[str, Any]] = []
        ready: tuple[Unit, Arrays, list[dict[str, Any]]] | None = None  # but for copies
        for batch in self._decoding.batches(units, lambda: self._batches.size):
            unit = batch.unit
            if batch.first == 0:
                arrays, notes = self._arrays_of(unit), []
            notes += self._note_problems(batch)
            self._warn_of_orientation(batch)
            _describe(batch, arrays)
            try:
                has_begun = self._encode(batch, arrays)
            except Exception as error:
                error.add_note(f"in unit {unit.number} (rows {unit.rows[0]} to {unit.rows[-1]})")
                if ready is not None and not self._copies.has_failed:  # it is of the next unit, and this one is whole
                    self._copies.wait()
                    yield ready
                raise
            self._settings.progress(len(batch.images))
            if ready is not None:
                if not has_begun:  # which would have waited for the batch before
                    self._copies.wait()
                yield ready
                ready = None
            if batch.first + len(batch.images) == len(unit.rows):
                ready = unit, {name: arrays[name] for name in unit.names}, notes
                if not self._copies.run_behind:
                    yield ready
                    ready = None
        if ready is not None:
            self._copies.wait()
            yield ready

    def _arrays_of(self, unit: Unit) -> Arrays:
        """The arrays of a unit, with arbitrary content, and those on its images that every unit has, which are zero."""
        n = len(unit.rows)
        self._memory.rotate()
        features, arrays = self._memory[0], {}
        for layout in self._layouts:
            if layout.name.startswith("images/"):
                if not is_annotation(layout.name):
                    arrays[layout.name] = np.zeros((n, *layout.shape[1:]), layout.dtype)
            elif layout.name in unit.names:
                if layout.name not in features or len(features[layout.name]) < n:
                    features[layout.name] = aligned_zeros((n, *layout.shape[1:]), layout.dtype)
                arrays[layout.name] = features[layout.name][:n]
        return arrays

    def _note_problems(self, batch: Batch) -> Iterator[dict[str, Any]]:
        """Notes on images that cannot be read.

        Raises:
            DataError: there is one, and the settings don't want it recorded.
        """
        for row, image in zip(batch.unit.rows[batch.first :], batch.images, strict=False):
            if image.problem is None:
                continue
            if self._settings.on_error == "raise":
                raise DataError(f"{image.problem}\nmend the data, or go on with --on-error record")
            sample = self._request.images.samples[row]
            yield {"row": row, "id": sample.id, "problem": sample.without_path(image.problem)}

    def _warn_of_orientation(self, batch: Batch) -> None:
        """Say once what is done with images that are not upright by their EXIF."""
        for row, image in zip(batch.unit.rows[batch.first :], batch.images, strict=False):
            if image.orientation is not None and not self._has_warned:
                self._has_warned = True
                self._settings.warn(
                    f"{self._request.images.samples[row]} is not upright by its EXIF (orientation {image.orientation}); its "
                    "pixels, and those of others like it, are taken as they are stored; --orientation exif turns them"
                )

    def _encode(self, batch: Batch, arrays: Arrays) -> bool:
        """Put the features of a batch in their rows, zeros in those of invalid images; whether anything was encoded."""
        valid = [i for i, image in enumerate(batch.images) if image.problem is None]
        has_begun = False
        if len(valid) < len(batch.images):
            for name in batch.unit.names:
                if not name.startswith("images/"):
                    arrays[name][batch.first : batch.first + len(batch.images)] = 0
        for view, pixels in batch.pixels.items():
            factors = self._request.factors_of([batch.unit.rows[batch.first + i] for i in valid], view)
            for part, encoded in self._batches.encode(batch.views(view, valid), factors) if valid else ():
                features = arrays_by_name(encoded, view, self._request.numbered)
                rows = [batch.first + i for i in valid[part]]
                convert = partial(stored_parts, features, batch.unit.names, self._request)
                self._copies.run(convert, partial(self._keep, features, rows, arrays), self._batches.began)
                has_begun = True
            self._buffers.give_back(pixels, self._batches.copied)
        return has_begun

    def _keep(
        self,
        features: Mapping[str, Tensor],
        rows: Sequence[int],
        arrays: Arrays,
        part: tuple[str, str | None],
        values: Tensor,
    ) -> None:
        name, end = part
        if end is None:
            check(values, features[name], name, self._request)
        else:
            arrays[name + end][rows] = as_array(values, name, end, self._request)


def _describe(batch: Batch, arrays: Arrays) -> None:
    """Put sizes and crops of images in their rows."""
    for i, image in enumerate(batch.images, batch.first):
        arrays["images/size"][i] = image.size
        arrays["images/valid"][i] = image.problem is None
        for view, crop in image.crops.items():
            arrays[f"images/crop/view{view}"][i] = crop.box
            arrays[f"images/flip/view{view}"][i] = crop.flip
