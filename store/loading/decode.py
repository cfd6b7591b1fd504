"""From stored bytes to the values of a batch, wherever they are."""

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

from store.codecs import SCALE, get_codec
from store.codecs.coded import Coded
from store.format.array import ArrayReader
from store.loading.buffers import Pool

Dtype = torch.dtype | Literal["stored"] | None  # of floating-point values in a batch
Key = tuple[str, str]  # name of an array in the batch, then "" for the array itself or SCALE for its scales


def parts_of(arrays: Mapping[str, Sequence[ArrayReader]]) -> dict[Key, list[ArrayReader]]:
    """The stored arrays behind `arrays`, one for each view: themselves, and their scales if they have any."""
    parts: dict[Key, list[ArrayReader]] = {}
    for name, views in arrays.items():
        parts[name, ""] = list(views)
        if scales := [array.scale for array in views if array.scale is not None]:
            parts[name, SCALE] = scales
    return parts


def decode_rows(array: ArrayReader, main: Tensor, scale: Tensor | None, dtype: Dtype, pool: Pool) -> Tensor:
    """Values [B, ...] of stored rows, on their device.

    Args:
        main: [B, row_nbytes] uint8; `scale` likewise, of the array's scales.
        dtype: of floating-point values; None leaves that of the codec, and "stored" leaves values that its codec would have to
            compute to whoever uses them: they are `Coded`.
        pool: for memory on the CPU, where fresh memory is slow.
    """
    codec = get_codec(array.layout.codec) if array.layout.codec is not None else None
    values = _rows(main, codec.stored if codec else None, array)
    if codec:
        parts = {"": values}
        if scale is not None and array.scale is not None:
            parts[SCALE] = _rows(scale, None, array.scale)
        if dtype == "stored" and codec.decodes_fast and codec.decoded != codec.stored:
            return Coded(codec, parts)
        values = codec.decode(parts)
    if dtype is None or dtype == "stored" or not values.is_floating_point() or values.dtype == dtype:
        return values
    if values.device.type != "cpu":
        return values.to(dtype)
    return pool.take(values.numel() * dtype.itemsize).view(dtype).view(values.shape).copy_(values)


def _rows(stored: Tensor, dtype: torch.dtype | None, array: ArrayReader) -> Tensor:
    return stored.view(dtype or getattr(torch, array.layout.dtype)).view(len(stored), *array.layout.shape[1:])
