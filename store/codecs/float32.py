"""Tokens as they are computed: 4 bytes a value."""

import torch
from torch import Tensor

from store.codecs.codec import Cast


class Float32(Cast):
    """IEEE 754 binary32. Error bound: 0."""

    name = "float32"
    stored, zarr_dtype = torch.float32, "float32"
    precision, smallest, largest = 24, 2.0**-149, torch.finfo(torch.float32).max

    def bound(self, values: Tensor) -> Tensor:
        return torch.zeros_like(values, dtype=torch.float64)
