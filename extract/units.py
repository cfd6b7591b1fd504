"""Computing one unit of a feature set: the arrays of some neighbouring images."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from extract.annotations import write_annotations
from extract.datasets import DataError, ImageSet
from extract.encoders import Encoded, Encoder
from extract.layouts import codec_of, named, view_of
from extract.requests import OnError
from extract.views import Crop
from store import ArrayLayout, BeyondClsError
from store.aligned import aligned_zeros
from store.codecs import SCALE


@dataclass(frozen=True)
class Decoded:
    """An image ready for the encoder, or what was wrong with it."""

    views: dict[int, tuple[Tensor, Crop]]
    size: tuple[int, int]  # height and width of the original, pixels
    problem: str | None = None


@dataclass
class Units:
    """Computes units; `decoders` prepare images one batch ahead. The other fields are those of `extract.run.extract`.

    Where memory runs out, batches are halved from there on.
    """

    encoder: Encoder
    images: ImageSet
    layouts: Sequence[ArrayLayout]
    blocks: Sequence[int]
    statistics: Sequence[str]
    maps: bool
    batch_size: int
    dtype: str
    decoders: ThreadPoolExecutor
    on_error: OnError
    progress: Callable[[int], None]
    warn: Callable[[str], None] = field(default=lambda message: None)

    def compute(self, rows: range, names: Sequence[str]) -> tuple[dict[str, np.ndarray], list[dict[str, Any]]]:
        """Arrays of some rows by name, as they are stored, and notes on invalid rows. Features of invalid rows are zero.

        Views without features among `names` are not computed.
        """
        every = {a.name: aligned_zeros((len(rows), *a.shape[1:]), a.dtype) for a in self.layouts if a.name in names}
        images = {a.name: np.zeros((len(rows), *a.shape[1:]), a.dtype) for a in self.layouts if a.name.startswith("images/")}
        arrays = {**images, **every}
        views = sorted({view for name in names if (view := view_of(name)) is not None})
        encode = {view_of(name) for name in names if not name.startswith("images/")}
        notes: list[dict[str, Any]] = []
        for first, batch in self._batches(rows, views):
            good = []
            for at, image in enumerate(batch, first):
                sample = self.images.samples[rows[at]]
                id_bytes = np.frombuffer(sample.id.encode(), np.uint8)
                arrays["images/id"][at, : len(id_bytes)] = id_bytes
                write_annotations(arrays, at, sample)
                arrays["images/size"][at] = image.size
                arrays["images/valid"][at] = image.problem is None
                for view, (_, crop) in image.views.items():
                    arrays[f"images/crop/view{view}"][at] = crop.box
                    arrays[f"images/flip/view{view}"][at] = crop.flip
                if image.problem is None:
                    good.append(at)
                elif self.on_error == "raise":
                    raise DataError(f"{image.problem}\nmend the data, or go on with --on-error record")
                else:
                    notes.append({"row": rows[at], "id": sample.id, "problem": sample.without_path(image.problem)})
            for view in views if good else ():
                if view in encode:
                    self._encode([batch[at - first].views[view][0] for at in good], view, good, names, arrays)
            self.progress(len(batch))
        return {name: arrays[name] for name in names}, notes

    def _encode(
        self, images: Sequence[Tensor], view: int, at: Sequence[int], names: Sequence[str], arrays: dict[str, np.ndarray]
    ) -> None:
        """Put the features of some images to their places."""
        begin = 0
        while begin < len(images):
            some = slice(begin, begin + self.batch_size)
            stacked = torch.stack(list(images[some]))
            encoded = self._forward(stacked)
            if encoded is None:
                continue  # with fewer
            begin = some.stop
            for name, values in named(encoded, view).items():
                # One of the two arrays of a codec with scales may be there already.
                if name in names or name + SCALE in names:
                    for end, stored in self._stored(values, name).items():
                        if name + end in names:
                            arrays[name + end][list(at[some])] = stored

    def _forward(self, images: Tensor) -> Encoded | None:
        """Features of some images; None, and a smaller `batch_size`, if memory did not suffice."""
        try:
            return self.encoder(images.to(self.encoder.device), self.blocks, self.statistics, self.maps)
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

    def _batches(self, rows: range, views: Sequence[int]) -> Iterator[tuple[int, list[Decoded]]]:
        """Batches of decoded and transformed images with the position of their first, one batch ahead."""
        size = self.batch_size
        ahead = [self.decoders.submit(self._decode, row, views) for row in rows[:size]]
        for start in range(0, len(rows), size):
            current = ahead
            ahead = [self.decoders.submit(self._decode, row, views) for row in rows[start + size : start + 2 * size]]
            yield start, [future.result() for future in current]

    def _decode(self, row: int, views: Sequence[int]) -> Decoded:
        sample = self.images.samples[row]
        if sample.problem:
            return Decoded({}, (0, 0), f"{sample}: {sample.problem}")
        try:
            image = self.images.image(row)
        except DataError as error:
            return Decoded({}, (0, 0), str(error))
        return Decoded({view: self.encoder.views.cut(image, sample.id, view) for view in views}, (image.height, image.width))

    def _stored(self, values: Tensor, name: str) -> dict[str, np.ndarray]:
        """As they are stored, by what the arrays' names end with. Never turns a finite value into an infinite one."""
        if not values.isfinite().all():
            raise BeyondClsError(f"{self.encoder.name} gives NaN or Inf in {name}; its weights or its input are broken")
        codec = codec_of(name, self.dtype)
        codec.check(values, name)
        stored = codec.encode(values.float())
        dtypes = {end: dtype for end, (_, dtype) in codec.parts(tuple(values.shape)).items()}
        return {end: part.cpu().contiguous().view(torch.uint8).numpy().view(dtypes[end]) for end, part in stored.items()}
