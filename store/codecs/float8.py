"""float8 e4m3: 1 byte a value. Zarr does not know it, so its bits are stored as uint8."""

import torch

from store.codecs.codec import Cast


class Float8(Cast):
    """OCP e4m3 without infinities. Error bound: |x| · 2^-4, at least 2^-10. Up to 448."""

    name = "float8_e4m3"
    stored, zarr_dtype = torch.float8_e4m3fn, "uint8"
    precision, smallest, largest = 4, 2.0**-9, 448.0
    decodes_fast = False  # PyTorch's conversion on a CPU is not vectorised
