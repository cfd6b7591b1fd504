"""float8 e5m2: 1 byte a value, wider in range than e4m3 and half as precise. Its bits are stored as uint8."""

import torch

from store.codecs.codec import Cast


class Float8E5M2(Cast):
    """OCP e5m2. Error bound: |x| · 2^-3, at least 2^-17. Up to 57,344."""

    name = "float8_e5m2"
    stored, zarr_dtype = torch.float8_e5m2, "uint8"
    precision, smallest, largest = 3, 2.0**-16, 57344.0
