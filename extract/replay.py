"""Forward passes that a GPU starts by itself once they were recorded.

To start some 700 operations one by one takes a thread of Python longer than a GPU takes to do them, as it waits for the
interpreter at each while others decode.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor

from extract.copies import Packed, Streams
from store.errors import first_line
from store.loading.placement import is_out_of_memory


@dataclass
class Replay:
    """What a device computes of batches of one shape: recorded with the second of them, and replayed from the third on.

    A recording is used if it gives, for that batch, the very bytes that were computed without it; else `warn` says why not.

    Attributes:
        streams: of the device.
        compute: gives features of images on the device; the same operations for all batches.
        warn: called with what a user should know.
    """

    streams: Streams
    compute: Callable[[Tensor], Packed]
    warn: Callable[[str], None] = lambda _: None
    _n_computed: int = field(init=False, default=0)
    _replay: Callable[[], None] | None = field(init=False, default=None)

    def __call__(self, images: Tensor) -> Packed:
        if self._replay is not None:
            self._images.copy_(images)
            self._replay()
            return replace(self._recorded, memory=self._recorded.memory.clone())  # it is overwritten by the next
        packed = self.compute(images)
        self._n_computed += 1
        if self._n_computed == 2 and (problem := self._record(images, packed)):
            self.warn(f"operations of the GPU are started one by one, which is slower where others decode: {problem}")
        return packed

    def _record(self, images: Tensor, expected: Packed) -> str | None:
        """Why it cannot be recorded; None if it was."""
        try:
            self._images = images.clone()
            start, self._recorded = self.streams.record(partial(self.compute, self._images))
        except RuntimeError as error:  # where the encoder waits for a result, say, or asks for it
            return "there is too little memory for a recording" if is_out_of_memory(error) else first_line(error)
        start()
        if not torch.equal(self._recorded.memory, expected.memory):
            return "a recording of them gives other values"
        self._replay = start
        return None
