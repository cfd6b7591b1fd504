"""Computing one unit of a feature set: the arrays of some neighbouring images."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from extract.datasets import DataError, ImageSet
from extract.encoders import Encoder
from extract.layouts import named
from store import ArrayLayout, BeyondClsError

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
    decoders: ThreadPoolExecutor
    device: str | torch.device
    on_error: OnError
    progress: Callable[[int], None]

    def compute(self, unit: int) -> tuple[dict[str, np.ndarray], list[dict[str, Any]]]:
        """All arrays of one unit by name, and notes on its invalid rows. Features of invalid rows are zero."""
        rows = range(*self.layouts[0].rows(unit))
        arrays = {a.name: np.zeros((len(rows), *a.shape[1:]), a.dtype) for a in self.layouts}
        notes: list[dict[str, Any]] = []
        for first, batch in self._batches(rows):
            good = []
            for at, image in enumerate(batch, first):
                sample = self.images.samples[rows[at]]
                id_bytes = np.frombuffer(sample.id.encode(), np.uint8)
                arrays["images/id"][at, : len(id_bytes)] = id_bytes
                arrays["images/label"][at] = -1 if sample.label is None else sample.label
                arrays["images/size"][at] = image.size
                arrays["images/valid"][at] = image.problem is None
                if image.problem is None:
                    good.append(at)
                elif self.on_error == "raise":
                    raise DataError(f"{image.problem}\nmend the data, or go on with --on-error record")
                else:
                    notes.append({"row": rows[at], "id": sample.id, "problem": sample.without_path(image.problem)})
            if good:
                stacked = torch.stack([batch[at - first].tensor for at in good]).to(self.device)  # type: ignore[misc]
                features = named(self.encoder(stacked, self.blocks, self.statistics, self.maps))
                for name, values in features.items():
                    arrays[name][good] = self._cast(values, name, arrays[name].dtype)
            self.progress(len(batch))
        return arrays, notes

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

    def _cast(self, values: Tensor, name: str, dtype: np.dtype) -> np.ndarray:
        """To the stored dtype, on the CPU. Never turns a finite value into an infinite one, never stores NaN."""
        if not values.isfinite().all():
            raise BeyondClsError(f"{self.encoder.name} gives NaN or Inf in {name}; its weights or its input are broken")
        cast = values.to(getattr(torch, dtype.name))
        if not cast.isfinite().all():
            largest = values.abs().max().item()
            raise BeyondClsError(
                f"{name} reaches {largest:.3g}, beyond the range of {dtype.name}; extract with --dtype float32"
            )
        return cast.cpu().numpy()
