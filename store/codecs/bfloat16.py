"""bfloat16: 2 bytes a value with the range of float32. Zarr does not know it, so its bits are stored as uint16."""

import torch

from store.codecs.codec import Cast


class BFloat16(Cast):
    """The upper half of a float32, rounded. Error bound: |x| · 2^-8, at least 2^-134."""

    name = "bfloat16"
    stored, zarr_dtype = torch.bfloat16, "uint16"
    precision, smallest, largest = 8, 2.0**-133, torch.finfo(torch.bfloat16).max
