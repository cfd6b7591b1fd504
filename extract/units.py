"""Computing units of a feature set: the arrays of neighbouring images."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from extract.annotations import is_annotation
from extract.batches import Batches
from extract.copies import Copies
from extract.datasets import DataError
from extract.decoding import Decoded, Decoding, Unit
from extract.layouts import arrays_by_name, codec_of
from extract.requests import Request
from extract.settings import Settings
from store import ArrayLayout, BeyondClsError
from store.codecs import SCALE
from store.places.aligned import aligned_zeros

Arrays = dict[str, np.ndarray]


class Units:
    """Computes units of a request.

    Args:
        layouts: of all arrays of the set.
        decoders: threads that prepare images, one batch ahead.
    """

    def __init__(self, request: Request, layouts: Sequence[ArrayLayout], settings: Settings, decoders: ThreadPoolExecutor):
        self._request, self._layouts, self._settings = request, layouts, settings
        self._decoding = Decoding(request.images, request.encoder.views, decoders)
        self._batches = Batches(request, settings.batch_size, settings.warn)
        self._copies = Copies(request.encoder.device)

    def compute(self, units: Iterable[Unit]) -> Iterator[tuple[Unit, Arrays, list[dict[str, Any]]]]:
        """Each unit with its arrays by name, as they are stored, and notes on invalid rows, whose features are zero.

        The next is taken from `units` before the last batch of one is computed: its first images are decoded meanwhile.
        """
        arrays: Arrays = {}
        notes: list[dict[str, Any]] = []
        for unit, first, batch in self._decoding.batches(units, lambda: self._batches.size):
            if first == 0:
                arrays, notes = self._zeros(unit), []
            notes += self._note_problems(unit, first, batch)
            _describe(first, batch, arrays)
            self._encode(unit, first, batch, arrays)
            self._settings.progress(len(batch))
            if first + len(batch) == len(unit.rows):
                self._copies.wait()
                yield unit, {name: arrays[name] for name in unit.names}, notes

    def _zeros(self, unit: Unit) -> Arrays:
        """The arrays of a unit, and those on its images that every unit has."""
        n = len(unit.rows)
        describing = [a for a in self._layouts if a.name.startswith("images/") and not is_annotation(a.name)]
        images = {a.name: np.zeros((n, *a.shape[1:]), a.dtype) for a in describing}
        return images | {a.name: aligned_zeros((n, *a.shape[1:]), a.dtype) for a in self._layouts if a.name in unit.names}

    def _note_problems(self, unit: Unit, first: int, batch: Sequence[Decoded]) -> Iterator[dict[str, Any]]:
        """Notes on images that cannot be read.

        Raises:
            DataError: there is one, and the settings don't want it recorded.
        """
        for row, image in zip(unit.rows[first : first + len(batch)], batch, strict=True):
            if image.problem is None:
                continue
            if self._settings.on_error == "raise":
                raise DataError(f"{image.problem}\nmend the data, or go on with --on-error record")
            sample = self._request.images.samples[row]
            yield {"row": row, "id": sample.id, "problem": sample.without_path(image.problem)}

    def _encode(self, unit: Unit, first: int, batch: Sequence[Decoded], arrays: Arrays) -> None:
        """Put the features of a batch in their rows, from row `first` of the unit on."""
        valid = [i for i, image in enumerate(batch) if image.problem is None]
        for view in unit.encoded_views if valid else ():
            for part, encoded in self._batches.encode([batch[i].views[view][0] for i in valid]):
                features = arrays_by_name(encoded, view, self._request.numbered)
                rows = [first + i for i in valid[part]]
                self._copies.run(partial(self._keep, features, rows, unit.names, arrays))

    def _keep(self, features: Mapping[str, Tensor], rows: Sequence[int], names: Sequence[str], arrays: Arrays) -> None:
        for name, values in features.items():
            # One of the two arrays of a codec with scales may be there already.
            if name in names or name + SCALE in names:
                for end, stored in to_stored(values, name, self._request).items():
                    if name + end in names:
                        arrays[name + end][list(rows)] = stored


def _describe(first: int, batch: Sequence[Decoded], arrays: Arrays) -> None:
    """Put sizes and crops of images in their rows."""
    for i, image in enumerate(batch, first):
        arrays["images/size"][i] = image.size
        arrays["images/valid"][i] = image.problem is None
        for view, (_, crop) in image.views.items():
            arrays[f"images/crop/view{view}"][i] = crop.box
            arrays[f"images/flip/view{view}"][i] = crop.flip


def to_stored(values: Tensor, name: str, request: Request) -> Arrays:
    """Values as they are stored, by the suffix of the arrays' names. Never turns a finite value into an infinite one.

    Raises:
        BeyondClsError: a value is not finite, or beyond the range of the codec.
    """
    if not values.isfinite().all():
        raise BeyondClsError(f"{request.encoder.name} gives NaN or Inf in {name}; its weights or its input are broken")
    codec = codec_of(name, request.dtype)
    codec.check(values, name)
    stored = codec.encode(values.float())
    dtypes = {end: dtype for end, (_, dtype) in codec.parts(tuple(values.shape)).items()}
    return {end: part.cpu().contiguous().view(torch.uint8).numpy().view(dtypes[end]) for end, part in stored.items()}
