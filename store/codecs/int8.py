"""int8 with a scale per token: 1 byte a value and 4 bytes a token."""

from collections.abc import Mapping

import torch
from torch import Tensor

from store.codecs.codec import SCALE, Codec

LEVELS = 127


class Int8(Codec):
    """Symmetric: scale = max |x| / 127 over the token, x ≈ scale · q with q in -127…127.

    Error bound: scale · (1/2 + 2^-15), the small part for rounding in float32.
    """

    name = "int8"
    stored, zarr_dtype = torch.int8, "int8"
    largest = 3.4e38  # a little below the end of float32: 127 times the rounded scale must not be beyond it

    def parts(self, shape: tuple[int, ...]) -> dict[str, tuple[tuple[int, ...], str]]:
        return {"": (shape, "int8"), SCALE: (shape[:-1], "float32")}

    def encode(self, values: Tensor) -> dict[str, Tensor]:
        scale = _scale(values)
        q = (values / scale[..., None]).round_().clamp_(-LEVELS, LEVELS)
        return {"": q.to(torch.int8), SCALE: scale}

    def decode(self, parts: Mapping[str, Tensor]) -> Tensor:
        # Casting first and multiplying in place: one product of mixed dtypes takes eight times as long.
        return parts[""].to(torch.float32).mul_(parts[SCALE][..., None])

    def bound(self, values: Tensor) -> Tensor:
        return (_scale(values).double() * (0.5 + 2.0**-15))[..., None].expand(values.shape)


def _scale(values: Tensor) -> Tensor:
    # A token of zeros, or of numbers whose quotient is subnormal in float32, has the smallest normal scale.
    # By a tensor: by a plain number a GPU multiplies with the reciprocal, which may be one bit off.
    return (values.abs().amax(-1) / values.new_full((), LEVELS)).clamp_(min=torch.finfo(torch.float32).tiny)
