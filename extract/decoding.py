"""Images as the encoder takes them, decoded on threads while the batch before is computed."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from extract.copies import Buffers
from extract.datasets import DataError, ImageSet
from extract.layouts import view_of
from extract.stages import COPYING_IN, DECODING, Course
from extract.views import Crop, Views

DECODERS = 4  # threads at least; where a CPU encodes as well, it has no cores to spare for more


def decoders(n: int | None, device: torch.device) -> ThreadPoolExecutor:
    """Threads that decode images.

    Args:
        n: how many; None: 4 or, beside a GPU, as many as the cores that torch may use here.
        device: what encodes them.
    """
    if n is None:
        n = max(DECODERS, torch.get_num_threads()) if device.type == "cuda" else DECODERS
    return ThreadPoolExecutor(n, "beyondcls-decoder")


@dataclass(frozen=True)
class Unit:
    """Rows of the set, and the names of their arrays to compute; annotations are not among them."""

    number: int
    rows: Sequence[int]
    names: Sequence[str]

    @cached_property
    def views(self) -> list[int]:
        """Views of which it has arrays."""
        return _views_of(self.names)

    @cached_property
    def encoded_views(self) -> list[int]:
        """Views of which it has features; of others it has only the crop."""
        return _views_of(name for name in self.names if not name.startswith("images/"))


def _views_of(names: Iterable[str]) -> list[int]:
    return sorted({view for name in names if (view := view_of(name)) is not None})


@dataclass(frozen=True)
class Decoded:
    """An image ready for the encoder, or what was wrong with it.

    Attributes:
        crops: what its views show.
        size: height and width of the original, pixels.
        apart: views that did not fit into the memory of their batch, as they are no pixels [3, H, W] of 8 bits.
        orientation: by EXIF, if the image is not upright and was not turned.
    """

    crops: dict[int, Crop]
    size: tuple[int, int]
    problem: str | None = None
    apart: dict[int, Tensor] = field(default_factory=dict)
    orientation: int | None = None


@dataclass(frozen=True)
class Batch:
    """Neighbouring images of a unit, decoded.

    Attributes:
        first: position of the first image in the unit.
        pixels: of all images, by view: [B or more, 3, H, W]. An image that could not be read has none in its row.
    """

    unit: Unit
    first: int
    images: Sequence[Decoded]
    pixels: Mapping[int, Tensor]

    def views(self, view: int, chosen: Sequence[int]) -> Tensor:
        """A view of some of its images, ascending, that could be read; called once, as rows may be moved."""
        pixels, apart = self.pixels[view], [self.images[i].apart for i in chosen]
        if any(view in one for one in apart):
            return torch.stack([one.get(view, pixels[i]) for i, one in zip(chosen, apart, strict=True)])
        for row, i in enumerate(chosen):
            if row != i:  # an image before it could not be read
                pixels[row] = pixels[i]
        return pixels[: len(chosen)]


@dataclass(frozen=True)
class Decoding:
    """Decodes images of a set and cuts their views.

    Attributes:
        shape: of a view: 3, height, width.
        buffers: give the memory of batches.
        course: what the thread does that takes them.
    """

    images: ImageSet
    views: Views
    threads: ThreadPoolExecutor
    shape: Sequence[int]
    buffers: Buffers
    course: Course

    def batches(self, units: Iterable[Unit], size: Callable[[], int]) -> Iterator[Batch]:
        """Batches of units, decoded one ahead; their memory is to be given back. `size`: images of the next."""
        ahead: tuple[Batch, list[Future[Decoded]]] | None = None
        for unit in units:
            n = size()
            for first in range(0, len(unit.rows), n):
                begun = self._begin(unit, first, unit.rows[first : first + n])
                if ahead is not None:
                    yield self._finish(*ahead)
                ahead = begun
        if ahead is not None:
            yield self._finish(*ahead)

    def _begin(self, unit: Unit, first: int, rows: Sequence[int]) -> tuple[Batch, list[Future[Decoded]]]:
        with self.course.doing(COPYING_IN):  # waits for a buffer that is still copied from
            pixels = {view: self.buffers.take(len(rows), self.shape, torch.uint8) for view in unit.encoded_views}
        decoding = []
        for i, row in enumerate(rows):
            targets = {view: of_batch[i] for view, of_batch in pixels.items()}
            decoding.append(self.threads.submit(self.decode, row, unit.views, targets))
        return Batch(unit, first, (), pixels), decoding

    def _finish(self, batch: Batch, decoding: Sequence[Future[Decoded]]) -> Batch:
        with self.course.doing(DECODING):
            return replace(batch, images=[future.result() for future in decoding])

    def decode(self, row: int, views: Sequence[int], targets: Mapping[int, Tensor]) -> Decoded:
        """An image and its views; their pixels go to `targets`, and of views without one only the crop is of interest."""
        sample = self.images.samples[row]
        if sample.problem:
            return Decoded({}, (0, 0), f"{sample}: {sample.problem}")
        with ExitStack() as held:  # an image is in memory until its views are cut
            try:
                image = self.images.image(row, held)
            except DataError as error:
                return Decoded({}, (0, 0), str(error))
            decoded = Decoded({}, (image.height, image.width), orientation=image.info.get("orientation"))
            for view in views:
                if view not in targets:
                    decoded.crops[view] = self.views.crop((image.width, image.height), sample.id, view)
                    continue
                pixels, decoded.crops[view] = self.views.cut(image, sample.id, view)
                if (pixels.dtype, pixels.shape) == (targets[view].dtype, targets[view].shape):
                    # By NumPy: PyTorch would wake threads for each decoder, which take turns with those that encode.
                    np.copyto(targets[view].numpy(), pixels.numpy())
                else:
                    decoded.apart[view] = pixels
        return decoded
