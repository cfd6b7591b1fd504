"""Computing one unit of a feature set: the arrays of some neighbouring images."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from extract.annotations import write_annotations
from extract.datasets import DataError, ImageSet
from extract.encoders import Encoder
from extract.layouts import codec_of, named
from store import ArrayLayout, BeyondClsError
from store.aligned import aligned_zeros
from store.codecs import SCALE

OnError = Literal["raise", "record"]


@dataclass(frozen=True)
class Decoded:
    """An image ready for the encoder, or what was wrong with it."""

    tensor: Tensor | None
    size: tuple[int, int]  # height and width of the original, pixels
    problem: str | None


@dataclass
class Units:
    """Computes units; `decoders` prepare images one batch ahead. The other fields are those of `extract.run.extract`."""

    encoder: Encoder
    images: ImageSet
    layouts: Sequence[ArrayLayout]
    blocks: Sequence[int]
    statistics: Sequence[str]
    maps: bool
    batch_size: int
    dtype: str
    decoders: ThreadPoolExecutor
    device: str | torch.device
    on_error: OnError
    progress: Callable[[int], None]

    def compute(self, rows: range, names: Sequence[str]) -> tuple[dict[str, np.ndarray], list[dict[str, Any]]]:
        """Arrays of some rows by name, as they are stored, and notes on invalid rows. Features of invalid rows are zero.

        Without features among `names`, the encoder does not run.
        """
        every = {a.name: aligned_zeros((len(rows), *a.shape[1:]), a.dtype) for a in self.layouts if a.name in names}
        images = {a.name: np.zeros((len(rows), *a.shape[1:]), a.dtype) for a in self.layouts if a.name.startswith("images/")}
        arrays = {**images, **every}
        encode = any(not name.startswith("images/") for name in names)
        notes: list[dict[str, Any]] = []
        for first, batch in self._batches(rows):
            good = []
            for at, image in enumerate(batch, first):
                sample = self.images.samples[rows[at]]
                id_bytes = np.frombuffer(sample.id.encode(), np.uint8)
                arrays["images/id"][at, : len(id_bytes)] = id_bytes
                write_annotations(arrays, at, sample)
                arrays["images/size"][at] = image.size
                arrays["images/valid"][at] = image.problem is None
                if image.problem is None:
                    good.append(at)
                elif self.on_error == "raise":
                    raise DataError(f"{image.problem}\nmend the data, or go on with --on-error record")
                else:
                    notes.append({"row": rows[at], "id": sample.id, "problem": sample.without_path(image.problem)})
            if good and encode:
                stacked = torch.stack([batch[at - first].tensor for at in good]).to(self.device)  # type: ignore[misc]
                features = named(self.encoder(stacked, self.blocks, self.statistics, self.maps))
                for name, values in features.items():
                    # One of the two arrays of a codec with scales may be there already.
                    if name in names or name + SCALE in names:
                        for end, stored in self._encode(values, name).items():
                            if name + end in names:
                                arrays[name + end][good] = stored
            self.progress(len(batch))
        return {name: arrays[name] for name in names}, notes

    def _batches(self, rows: range) -> Iterator[tuple[int, list[Decoded]]]:
        """Batches of decoded and transformed images with the position of their first, one batch ahead."""
        size = self.batch_size
        ahead = [self.decoders.submit(self._decode, row) for row in rows[:size]]
        for start in range(0, len(rows), size):
            current = ahead
            ahead = [self.decoders.submit(self._decode, row) for row in rows[start + size : start + 2 * size]]
            yield start, [future.result() for future in current]

    def _decode(self, row: int) -> Decoded:
        sample = self.images.samples[row]
        if sample.problem:
            return Decoded(None, (0, 0), f"{sample}: {sample.problem}")
        try:
            image = self.images.image(row)
        except DataError as error:
            return Decoded(None, (0, 0), str(error))
        return Decoded(self.encoder.transform(image), (image.height, image.width), None)

    def _encode(self, values: Tensor, name: str) -> dict[str, np.ndarray]:
        """As they are stored, by what the arrays' names end with. Never turns a finite value into an infinite one."""
        if not values.isfinite().all():
            raise BeyondClsError(f"{self.encoder.name} gives NaN or Inf in {name}; its weights or its input are broken")
        codec = codec_of(name, self.dtype)
        codec.check(values, name)
        stored = codec.encode(values.float())
        dtypes = {end: dtype for end, (_, dtype) in codec.parts(tuple(values.shape)).items()}
        return {end: part.cpu().contiguous().view(torch.uint8).numpy().view(dtypes[end]) for end, part in stored.items()}
