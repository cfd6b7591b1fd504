"""The codecs: floating-point formats, of which Zarr lacks some, so their bits are stored as integers; integers with scales."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from store.codecs.codec import SCALE, Cast, Codec
from store.errors import StoreError

GROUP = 64  # channels that share a scale in int4, or its largest divisor that fits


class Float32(Cast):
    """IEEE 754 binary32, as tokens are computed. Error bound: 0."""

    name = "float32"
    stored, zarr_dtype = torch.float32, "float32"
    precision, smallest, largest = 24, 2.0**-149, torch.finfo(torch.float32).max

    def bound(self, values: Tensor) -> Tensor:
        return torch.zeros_like(values, dtype=torch.float64)


class Float16(Cast):
    """IEEE 754 binary16, the default. Error bound: |x| · 2^-11, at least 2^-25. Up to 65,504."""

    name = "float16"
    stored, zarr_dtype, decoded = torch.float16, "float16", torch.float16
    precision, smallest, largest = 11, 2.0**-24, 65504.0


class BFloat16(Cast):
    """The upper half of a float32, rounded. Error bound: |x| · 2^-8, at least 2^-134."""

    name = "bfloat16"
    stored, zarr_dtype = torch.bfloat16, "uint16"
    precision, smallest, largest = 8, 2.0**-133, torch.finfo(torch.bfloat16).max


class Float8(Cast):
    """OCP e4m3 without infinities. Error bound: |x| · 2^-4, at least 2^-10. Up to 448."""

    name = "float8_e4m3"
    stored, zarr_dtype = torch.float8_e4m3fn, "uint8"
    precision, smallest, largest = 4, 2.0**-9, 448.0
    decodes_fast = False  # PyTorch's conversion on a CPU is not vectorised


class Int8(Codec):
    """1 byte a value and 4 bytes a token. Symmetric: scale = max |x| / 127 over the token, x ≈ scale · q with q in -127…127.

    Error bound: scale · (1/2 + 2^-15), the small part for rounding in float32.
    """

    name = "int8"
    stored, zarr_dtype = torch.int8, "int8"
    largest = 3.4e38  # a little below the end of float32: 127 times the rounded scale must not be beyond it

    def parts(self, shape: tuple[int, ...]) -> dict[str, tuple[tuple[int, ...], str]]:
        return {"": (shape, "int8"), SCALE: (shape[:-1], "float32")}

    def _scale(self, values: Tensor) -> Tensor:
        # A token of zeros, or of numbers whose quotient is subnormal in float32, has the smallest normal scale.
        # By a tensor: by a plain number a GPU multiplies with the reciprocal, which may be one bit off.
        return (values.abs().amax(-1) / values.new_full((), 127)).clamp_(min=torch.finfo(torch.float32).tiny)

    def encode(self, values: Tensor) -> dict[str, Tensor]:
        scale = self._scale(values)
        return {"": (values / scale[..., None]).round_().clamp_(-127, 127).to(torch.int8), SCALE: scale}

    def decode(self, parts: Mapping[str, Tensor]) -> Tensor:
        # Casting first and multiplying in place: one product of mixed dtypes takes eight times as long.
        return parts[""].to(torch.float32).mul_(parts[SCALE][..., None])

    def bound(self, values: Tensor) -> Tensor:
        return (self._scale(values).double() * (0.5 + 2.0**-15))[..., None].expand(values.shape)


class Int4(Codec):
    """Half a byte a value and 2 bytes a group of gcd(D, 64) neighbouring channels.

    Symmetric: scale = max |x| / 7 over the group, rounded up to float16; x ≈ scale · q with q in -7…7. Channels 2j and 2j + 1
    share byte j: q + 8 of the even one in the low half, of the odd one in the high half. Error bound: scale · (1/2 + 2^-18),
    the small part for rounding in float32.
    """

    name = "int4"
    stored, zarr_dtype = torch.uint8, "uint8"
    largest = 7 * 65504.0

    def parts(self, shape: tuple[int, ...]) -> dict[str, tuple[tuple[int, ...], str]]:
        if shape[-1] % 2:
            raise StoreError(f"int4 packs channels in pairs, but there are {shape[-1]}; use --dtype int8")
        groups = shape[-1] // math.gcd(shape[-1], GROUP)
        return {"": ((*shape[:-1], shape[-1] // 2), "uint8"), SCALE: ((*shape[:-1], groups), "float16")}

    def shape(self, stored: tuple[int, ...]) -> tuple[int, ...]:
        return (*stored[:-1], 2 * stored[-1])

    def _scale(self, values: Tensor) -> Tensor:
        """[..., groups] float16, not below max |x| / 7, so that no q goes beyond 7."""
        largest = values.unflatten(-1, (-1, math.gcd(values.shape[-1], GROUP))).abs().amax(-1)
        exact = largest / values.new_full((), 7)  # by a tensor, as above
        nearest = exact.to(torch.float16)
        # The bits of positive numbers are ordered as the numbers are: one more is the next number up.
        above = (nearest.view(torch.int16) + 1).view(torch.float16)
        return torch.where(nearest.float() < exact, above, nearest).clamp_(min=2.0**-24)

    def encode(self, values: Tensor) -> dict[str, Tensor]:
        scale = self._scale(values)
        grouped = values.unflatten(-1, (scale.shape[-1], -1))
        q = (grouped / scale.float()[..., None]).round_().clamp_(-7, 7).add_(8).to(torch.uint8).flatten(-2)
        return {"": q[..., 0::2] | (q[..., 1::2] << 4), SCALE: scale}

    def decode(self, parts: Mapping[str, Tensor]) -> Tensor:
        packed, scale = parts[""], parts[SCALE]
        q = torch.stack((packed & 15, packed >> 4), -1).flatten(-2).to(torch.float32).sub_(8)
        return q.unflatten(-1, (scale.shape[-1], -1)).mul_(scale.float()[..., None]).flatten(-2)

    def bound(self, values: Tensor) -> Tensor:
        scale = self._scale(values).double() * (0.5 + 2.0**-18)
        return scale[..., None].expand(*scale.shape, values.shape[-1] // scale.shape[-1]).flatten(-2)
