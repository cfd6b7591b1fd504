"""Images through the encoder in batches that fit into memory."""

from collections.abc import Callable, Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from extract.copies import Event, Streams
from extract.encoders import Encoded
from extract.requests import Request
from extract.stages import COPYING_IN, ENCODING, Course
from store import BeyondClsError
from store.loading.placement import is_out_of_memory


class Batches:
    """Runs images through the encoder of a request. Where memory runs out, batches are halved from there on.

    Args:
        streams: of the encoder's device, if that is a GPU.
        course: what this thread does.

    Attributes:
        size: images per forward pass.
        copied: the end of the last copy to the device.
        began: when the device began with the last batch.
    """

    copied: Event | None = None
    began: Event | None = None

    def __init__(
        self,
        request: Request,
        size: int,
        warn: Callable[[str], None],
        streams: Streams | None = None,
        course: Course | None = None,
    ):
        self.size = size
        self._request, self._warn = request, warn
        self._streams, self._course = streams, course or Course()

    def encode(self, images: Tensor, factors: Float[Tensor, "_ _ 2"] | None = None) -> Iterator[tuple[slice, Encoded]]:
        """Features of views [B, 3, H, W], by parts: which images they are of, and what the encoder makes of them.

        Args:
            factors: of these images, as for the encoder.

        Raises:
            BeyondClsError: memory does not suffice for a single image.
        """
        begin = 0
        while begin < len(images):
            part = slice(begin, begin + self.size)
            encoded = self.forward(images[part], None if factors is None else factors[part])
            if encoded is not None:  # else again, with a smaller batch
                yield part, encoded
                begin = part.stop

    def forward(self, images: Tensor, factors: Float[Tensor, "B L 2"] | None = None) -> Encoded | None:
        """Features of some images; None, and a smaller `size`, if memory did not suffice."""
        encoder = self._request.encoder
        try:
            with self._course.doing(COPYING_IN):
                placed = self._placed(images)
            with self._course.doing(ENCODING):
                return self._encoded(placed, factors)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            if len(images) == 1:
                raise BeyondClsError(
                    f"memory does not suffice for one image through {encoder.name}; "
                    "stop what else uses it, or give --amp bf16, fewer --blocks, or another --device"
                ) from error
        self.halve(len(images))  # outside of `except`, whose traceback holds on to the memory
        return None

    def halve(self, n: int | None = None) -> None:
        """Go on with half of the batch of `n` images for which memory did not suffice, or of the present size."""
        self.size = max(1, (self.size if n is None else n) // 2)
        if self._request.encoder.device.type == "cuda":
            torch.cuda.empty_cache()
        self._warn(f"out of memory: going on with batches of {self.size}")

    def _encoded(self, images: Tensor, factors: Float[Tensor, "B L 2"] | None) -> Encoded:
        """Features of images on the device. A compiled encoder sees full batches alone: for each size it is compiled again."""
        n_missing = self.size - len(images)
        if not self._request.encoder.is_compiled or n_missing <= 0 or factors is not None:
            return self._request.encode(images, factors)
        filled = torch.cat([images, images[-1:].expand(n_missing, -1, -1, -1)])
        return self._request.encode(filled).first(len(images))

    def _placed(self, images: Tensor) -> Tensor:
        """Images on their way to the device, which computes others meanwhile."""
        if self._streams is None:
            return images
        placed, self.copied = self._streams.copy_in(images)
        self.began = self._streams.mark()
        return placed
