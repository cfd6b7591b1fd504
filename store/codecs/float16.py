"""Half precision, the default: 2 bytes a value."""

import torch

from store.codecs.codec import Cast


class Float16(Cast):
    """IEEE 754 binary16. Error bound: |x| · 2^-11, at least 2^-25. Up to 65,504."""

    name = "float16"
    stored, zarr_dtype, decoded = torch.float16, "float16", torch.float16
    precision, smallest, largest = 11, 2.0**-24, 65504.0
