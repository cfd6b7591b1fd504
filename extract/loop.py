"""The loop of an extraction: images are decoded one batch ahead of the encoder, and what it makes of them becomes arrays of the
store. A unit is all arrays of neighbouring images.
"""

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from extract.copies import Buffers, Copies, Packed, Replay, Streams, streams_of
from extract.datasets import DataError
from extract.decoding import Decoded, Processes, decode_all
from extract.encoders import Encoded
from extract.layouts import arrays_by_name, as_array, check, is_annotation, stored_parts
from extract.requests import Request
from extract.stages import COPYING_IN, DECODING, ENCODING, StageTimes
from extract.transform import original_size
from store import ArrayLayout, BeyondClsError
from store.format.layout import ArrayName
from store.loading.placement import is_out_of_memory
from store.places.place import aligned_zeros

TASKS = 64  # of decoding, of a large batch: each has a cost of its own
COPIERS, COPIED_NBYTES = 4, 1 << 20  # threads that share the work of a copy in main memory, and what each takes at least
DECODERS = 4  # threads at least; where a CPU encodes as well, it has no cores to spare for more
OnError = Literal["raise", "record"]
Arrays = dict[str, np.ndarray]
Notes = list[dict[str, Any]]
Factors = Float[Tensor, "B L 2"] | None


def n_decoders(n: int | None, device: torch.device) -> int:
    """How many images are decoded at once: `n`; or else 4, or beside a GPU as many as the cores that torch may use here."""
    return n or (max(DECODERS, torch.get_num_threads()) if device.type == "cuda" else DECODERS)


def decoders(n: int | None, device: torch.device) -> ThreadPoolExecutor:
    """Threads that decode so many images at once."""
    return ThreadPoolExecutor(n_decoders(n, device), "beyondcls-decoder")


@dataclass(frozen=True)
class Unit:
    """Rows of the set, and the names of their arrays to compute; annotations are not among them."""

    number: int
    rows: Sequence[int]
    names: Sequence[str]


def views_of(names: Iterable[str]) -> list[int]:
    """Views that arrays of these names are of."""
    return sorted({view for name in names if (view := ArrayName.parse(name).view) is not None})


@dataclass(frozen=True)
class Batch:
    """Neighbouring images of a unit, decoded, from position `first` on.

    `pixels`: of all images, by view: [B or more, 3, H, W]. An image that could not be read has none in its row.
    """

    unit: Unit
    first: int
    images: Sequence[Decoded]
    pixels: Mapping[int, Tensor]

    @property
    def is_last(self) -> bool:
        return self.first + len(self.images) == len(self.unit.rows)

    def views(self, view: int, chosen: Sequence[int]) -> Tensor:
        """A view of some of its images, ascending, that could be read; called once, as rows may be moved."""
        pixels, apart = self.pixels[view], [self.images[i].apart for i in chosen]
        if any(view in one for one in apart):
            return torch.stack([one.get(view, pixels[i]) for i, one in zip(chosen, apart, strict=True)])
        for row, i in enumerate(chosen):
            if row != i:  # an image before it could not be read
                pixels[row] = pixels[i]
        return pixels[: len(chosen)]


@dataclass
class Passes:
    """Takes images of a request through its encoder: decoded on threads, then encoded in batches that fit into memory.

    Attributes:
        size: images per forward pass. Where memory runs out, batches are halved from there on.
        threads: that decode.
        warn: called with what a user should know.
        course: what the thread does that takes the batches.
        n_processes: that decode in place of the threads, as far as they can; 0 for none.
        began: when the device began with the last batch.
        replays: of full batches, by what is computed.
    """

    request: Request
    size: int
    threads: ThreadPoolExecutor
    warn: Callable[[str], None] = lambda _: None
    course: StageTimes = field(default_factory=StageTimes)
    n_processes: int = 0
    began: torch.cuda.Event | None = field(init=False, default=None)
    replays: dict[Hashable, Replay] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.streams: Streams | None = streams_of(self.request.encoder.device)
        self._buffers = Buffers(self.streams)
        self._copied: torch.cuda.Event | None = None  # the end of the last copy to the device
        self._processes = Processes(self.n_processes, self.decode, self.warn) if self.n_processes else None
        self._n_ahead = 2 if self._processes else 1  # so that no process waits for the slowest of a batch

    def batches(self, units: Iterable[Unit]) -> Iterator[Batch]:
        """Batches of units, decoded ahead; `encode` is to be called with each of their encoded views."""
        ahead: deque[Callable[[], Batch]] = deque()
        try:
            for unit in units:
                n = self.size
                for first in range(0, len(unit.rows), n):
                    ahead.append(self._begin(unit, first, unit.rows[first : first + n]))
                    if len(ahead) > self._n_ahead:
                        yield ahead.popleft()()
            while ahead:
                yield ahead.popleft()()
        finally:
            self._close()

    def _share(self, shape: Sequence[int]) -> None:
        """Have buffers for pixels that processes share, before they begin."""
        assert self._processes is not None
        try:
            for _ in range((self._n_ahead + 2) * self.request.n_views):
                memory = self._processes.share((self.size, *shape))
                if self.streams is not None:
                    self.streams.pin(memory)
                self._buffers.give_back(memory)
        except (OSError, RuntimeError) as error:
            self._processes.fail(error)

    def _close(self) -> None:
        """End processes, and unpin what they share, once the last copy from it is made."""
        if self._processes is not None:
            self._processes.close()
            if self._copied is not None:
                self._copied.synchronize()
            for memory in self._processes.shared:
                if self.streams is not None:
                    self.streams.unpin(memory)

    def _begin(self, unit: Unit, first: int, rows: Sequence[int]) -> Callable[[], Batch]:
        """Begin to decode a batch; what is returned waits for it."""
        shape = self.request.encoder.config["input_size"]
        with self.course.doing(COPYING_IN):  # waits for a buffer that is still copied from
            # Of views without features only the crop is of interest.
            encoded = views_of(name for name in unit.names if not name.startswith("images/"))
            if self._processes is not None and not self._processes.shared:
                self._share(shape)
            pixels = {view: self._buffers.take(len(rows), shape, torch.uint8) for view in encoded}
        views, step = views_of(unit.names), max(1, len(rows) // TASKS)
        begun = None if self._processes is None else self._processes.begin(rows, views, pixels)
        parts = range(0, len(rows), step) if begun is None else ()
        decoding = [
            self.threads.submit(decode_all, self.decode, begin, rows[begin : begin + step], views, pixels) for begin in parts
        ]

        def finish() -> Batch:
            with self.course.doing(DECODING):
                images = [image for future in decoding for image in future.result()] if begun is None else begun()
                return Batch(unit, first, images, pixels)

        return finish

    def decode(self, row: int, views: Sequence[int], targets: Mapping[int, Tensor]) -> Decoded:
        """An image and its views; their pixels go to `targets`, and of views without one only the crop is made."""
        cutter, sample = self.request.encoder.views, self.request.images.samples[row]
        if sample.problem:
            return Decoded({}, (0, 0), f"{sample}: {sample.problem}")
        with ExitStack() as held:  # an image is in memory until its views are cut
            try:
                image = self.request.image(row, held)
            except DataError as error:
                return Decoded({}, (0, 0), str(error))
            size = original_size(image)
            decoded = Decoded({}, size[::-1], orientation=image.info.get("orientation"))
            decoded.crops.update({view: cutter.crop(size, sample.id, view) for view in views if view not in targets})
            encoded = [view for view in views if view in targets]
            for view, (pixels, crop) in zip(encoded, cutter.cuts(image, sample.id, encoded), strict=True):
                decoded.crops[view] = crop
                if (pixels.dtype, pixels.shape) == (targets[view].dtype, targets[view].shape):
                    # By NumPy: PyTorch would wake threads for each decoder, which take turns with those that encode.
                    np.copyto(targets[view].numpy(), pixels.numpy())
                else:
                    decoded.apart[view] = pixels
        return decoded

    def encode(
        self, batch: Batch, view: int, chosen: Sequence[int], compute: Callable[[Tensor, Factors], Any]
    ) -> Iterator[tuple[Sequence[int], Any]]:
        """Features of a view of those images of a batch that could be read (`chosen`, ascending), by parts: their positions in
        the unit, and what is computed of them. In the end the pixels of the view are given back.

        Args:
            compute: takes images on the device and what their branches are multiplied by; `encoded`, or what uses it.

        Raises:
            BeyondClsError: memory does not suffice for a single image.
        """
        positions, begin = [batch.first + i for i in chosen], 0
        images = batch.views(view, chosen)
        factors = self.request.factors_of([batch.unit.rows[i] for i in positions], view)
        while begin < len(images):
            part = slice(begin, begin + self.size)
            computed = self._computed(images[part], None if factors is None else factors[part], compute)
            if computed is not None:  # else again, with a smaller batch
                yield positions[part], computed
                begin = part.stop
        self._buffers.give_back(batch.pixels[view], self._copied)

    def encoded(self, images: Tensor, factors: Factors = None) -> Encoded:
        """Features of images on the device."""
        n_missing = self.size - len(images)
        if not self.request.encoder.is_compiled or n_missing <= 0 or factors is not None:
            return self.request.encode(images, factors)
        # It is compiled again for each size, so it sees full batches alone.
        return self.request.encode(torch.cat([images, images[-1:].expand(n_missing, -1, -1, -1)])).first(len(images))

    def _computed(self, images: Tensor, factors: Factors, compute: Callable[[Tensor, Factors], Any]) -> Any:
        """What is computed of some images; None, and a smaller `size`, if memory did not suffice."""
        n = len(images)
        try:
            with self.course.doing(COPYING_IN):
                placed = self._placed(images)
            with self.course.doing(ENCODING):
                return compute(placed, factors)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            if n == 1:
                raise BeyondClsError(
                    f"memory does not suffice for one image through {self.request.encoder.name}; "
                    "stop what else uses it, or give --amp bf16, fewer --blocks, or another --device"
                ) from error
        # Outside of `except`, whose traceback holds on to the memory.
        self.size = max(1, n // 2)
        self.replays.clear()
        if self.request.encoder.device.type == "cuda":
            torch.cuda.empty_cache()
        self.warn(f"out of memory: going on with batches of {self.size}")
        return None

    def _placed(self, images: Tensor) -> Tensor:
        """Images on their way to the device, which computes others meanwhile."""
        if self.streams is None:
            return images
        placed, self._copied = self.streams.copy_in(images)
        self.began = self.streams.mark()
        return placed


@dataclass
class Units:
    """Computes units of a feature set.

    Attributes:
        layouts: of all arrays of the set.
        on_error: "raise" at an image that cannot be read; "record": its features are zero, and a note says why.
        progress: called with the number of images done since the last call.
        n_written: units that are written at once, while the next is computed.
    """

    passes: Passes
    layouts: Sequence[ArrayLayout]
    on_error: OnError = "raise"
    progress: Callable[[int], None] = lambda _: None
    n_written: int = 1

    def __post_init__(self) -> None:
        self._request = self.passes.request
        self._copies = Copies(self.passes.streams, self.passes.course)
        self._has_warned = False  # of images that are not upright
        # Of features, used again: some sets are written, one is filled, and beside a GPU one waits for its last copies.
        n_sets = self.n_written + (2 if self._copies.run_behind else 1)
        self._memory: deque[Arrays] = deque({} for _ in range(n_sets))
        self._copiers = ThreadPoolExecutor(COPIERS, "beyondcls-copiers") if self._copies.run_behind else None

    def compute(self, units: Iterable[Unit]) -> Iterator[tuple[Unit, Arrays, Notes]]:
        """Each unit with its arrays by name, as they are stored, and notes on invalid rows, whose features are zero.

        The next is taken from `units` before the last batch of one is computed: its first images are decoded meanwhile. Beside
        a GPU a unit comes once the first batch of the next is being computed. Its arrays are used again when `n_written` + 1
        more have been taken.
        """
        arrays: Arrays = {}
        notes: Notes = []
        ready: tuple[Unit, Arrays, Notes] | None = None  # but for copies
        n_copies = 0  # until then
        for batch in self.passes.batches(units):
            unit = batch.unit
            if batch.first == 0:
                arrays, notes = self._arrays_of(unit), []
            notes += self._describe(batch, arrays)
            try:
                self._encode(batch, arrays)
            except Exception as error:
                error.add_note(f"in unit {unit.number} (rows {unit.rows[0]} to {unit.rows[-1]})")
                if ready is not None and not self._copies.has_failed:  # it is of the next unit, and this one is whole
                    self._copies.wait()
                    yield ready
                raise
            self.progress(len(batch.images))
            if ready is not None:
                self._copies.wait(self._copies.n_begun - n_copies)
                yield ready
                ready = None
            if batch.is_last:
                ready, n_copies = (unit, {name: arrays[name] for name in unit.names}, notes), self._copies.n_begun
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
        for layout in self.layouts:
            name, shape = layout.name, (n, *layout.shape[1:])
            if name.startswith("images/"):
                if not is_annotation(name):
                    arrays[name] = np.zeros(shape, layout.dtype)
            elif name in unit.names:
                if name not in features or len(features[name]) < n:
                    features[name] = aligned_zeros(shape, layout.dtype)
                arrays[name] = features[name][:n]
        return arrays

    def _describe(self, batch: Batch, arrays: Arrays) -> Iterator[dict[str, Any]]:
        """Put sizes and crops of images in their rows, give notes on those that cannot be read, and say once what is done with
        those that are not upright by their EXIF.
        """
        for row, image in zip(batch.unit.rows[batch.first :], batch.images, strict=False):
            if image.problem is None and image.orientation is None:
                continue
            sample = self._request.images.samples[row]
            if image.problem is not None:
                if self.on_error == "raise":
                    raise DataError(f"{image.problem}\nmend the data, or go on with --on-error record")
                yield {"row": row, "id": sample.id, "problem": sample.without_path(image.problem)}
            if image.orientation is not None and not self._has_warned:
                self._has_warned = True
                self.passes.warn(
                    f"{sample} is not upright by its EXIF (orientation {image.orientation}); its pixels, and those of others "
                    "like it, are taken as they are stored; --orientation exif turns them"
                )
        places = slice(batch.first, batch.first + len(batch.images))
        arrays["images/size"][places] = [image.size for image in batch.images]
        arrays["images/valid"][places] = [image.problem is None for image in batch.images]
        for view in views_of(batch.unit.names):
            crops = {i: image.crops[view] for i, image in enumerate(batch.images, batch.first) if view in image.crops}
            if crops:
                arrays[f"images/crop/view{view}"][list(crops)] = [crop.box for crop in crops.values()]
                arrays[f"images/flip/view{view}"][list(crops)] = [crop.flip for crop in crops.values()]

    def _encode(self, batch: Batch, arrays: Arrays) -> None:
        """Put the features of a batch in their rows, zeros in those of invalid images."""
        encoder, dtype = self._request.encoder, self._request.dtype
        valid = [i for i, image in enumerate(batch.images) if image.problem is None]
        if len(valid) < len(batch.images):
            for name in batch.unit.names:
                if not name.startswith("images/"):
                    arrays[name][batch.first : batch.first + len(batch.images)] = 0

        def keep(rows: Sequence[int], part: tuple[str, str | None], values: np.ndarray) -> None:
            name, end = part
            if end is None:
                check(values, name, dtype, encoder.name)
            else:
                put(as_array(values, name, end, dtype), arrays[name + end], rows, self._copiers)

        for view in batch.pixels:
            features_of = partial(self._features, view, tuple(batch.unit.names))
            for rows, features in self.passes.encode(batch, view, valid, features_of):
                self._copies.run(features, partial(keep, rows), self.passes.began)

    def _features(self, view: int, names: tuple[str, ...], images: Tensor, factors: Factors) -> Any:
        """Features of a view of images, as they are stored: parts by name and suffix, packed beside a GPU."""

        def parts(images: Tensor) -> Iterator[tuple[tuple[str, str | None], Tensor]]:
            features = arrays_by_name(self.passes.encoded(images, factors), view)
            return stored_parts(features, names, self._request.dtype)

        if (streams := self.passes.streams) is None:
            return parts(images)
        if factors is not None or len(images) < self.passes.size:
            return Packed.of(parts(images))
        key = view, names, images.dtype
        if key not in self.passes.replays:
            self.passes.replays[key] = Replay(streams, lambda images: Packed.of(parts(images)), self.passes.warn)
        return self.passes.replays[key](images)


def put(values: np.ndarray, array: np.ndarray, rows: Sequence[int], threads: ThreadPoolExecutor | None) -> None:
    """Copy values [n, ...] to rows of an array, ascending; several threads reach more of the speed of main memory."""
    if rows[-1] + 1 - rows[0] != len(rows):
        array[rows] = values
        return
    n_parts = 1 if threads is None else max(1, min(COPIERS, values.nbytes // COPIED_NBYTES))
    step = -(-len(rows) // n_parts)

    def copy(begin: int) -> None:
        array[rows[0] + begin : rows[0] + min(begin + step, len(rows))] = values[begin : begin + step]

    if threads is None or n_parts == 1:
        copy(0)
        return
    for copied in [threads.submit(copy, begin) for begin in range(0, len(rows), step)]:
        copied.result()
