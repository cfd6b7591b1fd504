"""int4 with a scale per token and group of channels: half a byte a value and 2 bytes a group."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from store.codecs.codec import SCALE, Codec
from store.errors import StoreError

GROUP = 64  # channels that share a scale, or the largest divisor of it that fits
LEVELS = 7


class Int4(Codec):
    """Symmetric: scale = max |x| / 7 over the group, rounded up to float16; x ≈ scale · q with q in -7…7.

    Channels 2j and 2j + 1 share byte j: q + 8 of the even one in the low half, of the odd one in the high half. Groups are
    of gcd(D, 64) neighbouring channels. Error bound: scale · (1/2 + 2^-18), the small part for rounding in float32.
    """

    name = "int4"
    stored, zarr_dtype = torch.uint8, "uint8"
    largest = LEVELS * 65504.0

    def parts(self, shape: tuple[int, ...]) -> dict[str, tuple[tuple[int, ...], str]]:
        if shape[-1] % 2:
            raise StoreError(f"int4 packs channels in pairs, but there are {shape[-1]}; use --dtype int8")
        groups = shape[-1] // math.gcd(shape[-1], GROUP)
        return {"": ((*shape[:-1], shape[-1] // 2), "uint8"), SCALE: ((*shape[:-1], groups), "float16")}

    def shape(self, stored: tuple[int, ...]) -> tuple[int, ...]:
        return (*stored[:-1], 2 * stored[-1])

    def encode(self, values: Tensor) -> dict[str, Tensor]:
        scale = _scale(values)
        grouped = values.unflatten(-1, (scale.shape[-1], -1))
        q = (grouped / scale.float()[..., None]).round_().clamp_(-LEVELS, LEVELS).add_(8).to(torch.uint8).flatten(-2)
        return {"": q[..., 0::2] | (q[..., 1::2] << 4), SCALE: scale}

    def decode(self, parts: Mapping[str, Tensor]) -> Tensor:
        packed, scale = parts[""], parts[SCALE]
        q = torch.stack((packed & 15, packed >> 4), -1).flatten(-2).to(torch.float32).sub_(8)
        return q.unflatten(-1, (scale.shape[-1], -1)).mul_(scale.float()[..., None]).flatten(-2)

    def bound(self, values: Tensor) -> Tensor:
        scale = _scale(values).double() * (0.5 + 2.0**-18)
        return scale[..., None].expand(*scale.shape, values.shape[-1] // scale.shape[-1]).flatten(-2)


def _scale(values: Tensor) -> Tensor:
    """[..., groups] float16, not below max |x| / 7, so that no q goes beyond 7."""
    largest = values.unflatten(-1, (-1, math.gcd(values.shape[-1], GROUP))).abs().amax(-1)
    exact = largest / values.new_full((), LEVELS)  # by a tensor: by a plain number a GPU multiplies with the reciprocal
    nearest = exact.to(torch.float16)
    # The bits of positive numbers are ordered as the numbers are: one more is the next number up.
    above = (nearest.view(torch.int16) + 1).view(torch.float16)
    return torch.where(nearest.float() < exact, above, nearest).clamp_(min=2.0**-24)
