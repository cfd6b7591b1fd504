"""Codecs that round to a floating-point format. Zarr does not know bfloat16 and float8: their bits are stored as integers."""

import torch
from torch import Tensor

from store.codecs.codec import Cast


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
