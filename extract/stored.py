"""Features as they are stored, made where they were computed: the device rounds, and fewer bytes are copied from it."""

from collections.abc import Container, Iterator, Mapping

import numpy as np
import torch
from torch import Tensor

from extract.layouts import codec_of
from extract.requests import Request
from store import BeyondClsError
from store.codecs import SCALE, Codec


def stored_parts(
    features: Mapping[str, Tensor], names: Container[str], request: Request
) -> Iterator[tuple[tuple[str, str | None], Tensor]]:
    """Arrays as they are stored, on the device of the features, by name and suffix.

    One of suffix None precedes those of a feature: whether its values fit, for `check`. To ask here would be to wait for the
    device.

    Args:
        features: by the name of their array.
        names: arrays to store, suffixes included; one of the two of a codec with scales may be there already.
    """
    for name, values in features.items():
        if name in names or name + SCALE in names:
            codec = codec_of(name, request.dtype)
            yield (name, None), _fits(values, codec)
            for end, part in codec.encode(values.float()).items():
                if name + end in names:
                    yield (name, end), part.contiguous()


def check(fits: Tensor, values: Tensor, name: str, request: Request) -> None:
    """Refuse values that cannot be stored. Never is a finite value turned into an infinite one.

    Raises:
        BeyondClsError: a value is not finite, or beyond the range of the codec.
    """
    if fits:
        return
    if not values.isfinite().all():
        raise BeyondClsError(f"{request.encoder.name} gives NaN or Inf in {name}; its weights or its input are broken")
    codec_of(name, request.dtype).check(values, name)


def as_array(part: Tensor, name: str, end: str, request: Request) -> np.ndarray:
    """A stored part in main memory, in the dtype that Zarr knows."""
    dtype = codec_of(name, request.dtype).parts((1, 2))[end][1]
    return part.view(torch.uint8).numpy().view(dtype)


def _fits(values: Tensor, codec: Codec) -> Tensor:
    """Whether all values are finite and in the range of a codec: a bool [1] on their device. NaN compares as False."""
    if not values.numel():
        return torch.ones(1, dtype=torch.bool, device=values.device)
    low, high = values.aminmax()
    return ((low >= -codec.largest) & (high <= codec.largest))[None]
