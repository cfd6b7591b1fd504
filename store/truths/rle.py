"""COCO's compressed run lengths of a mask: column by column, zeros first; written by faster-coco-eval, read by numpy.

A run length takes one byte for each 5 bits, of which bit 5 says that more follow, plus 48; from the fourth run on, the
difference from the run before the last is kept. Reading compares the sum of all runs with the size of the mask, so bytes that
were not written as a mask of that size are refused.
"""

from typing import Any

import numpy as np
from jaxtyping import Bool, Int16, Int64

from store.errors import StoreError

LOWEST, MORE, BITS = 48, 32, 5  # of a byte: offset; the bit that says that more follow; bits of the number
LONGEST = 12  # bytes of one number: 60 bits


def encode(masks: Bool[np.ndarray, "n h w"]) -> list[bytes]:
    """The run lengths of each mask; an error if faster-coco-eval is not installed."""
    coder = library()
    if not len(masks):
        return []
    encoded = coder.encode(np.asfortranarray(np.moveaxis(masks, 0, -1).astype(np.uint8)))
    return [bytes(one["counts"]) for one in encoded]


def encode_labels(label_map: Int16[np.ndarray, "h w"]) -> list[tuple[int, bytes]]:
    """The labels from 0 on that a map shows, ascending, and the run lengths of the mask of each: `encode`, in one pass."""
    coder = library()
    flat = label_map.T.ravel()
    starts = np.flatnonzero(np.diff(flat, prepend=flat[:1] - 1))
    values, bounds = flat[starts], np.append(starts, flat.size)
    labels = np.unique(values[values >= 0]).tolist()
    uncompressed = []
    for label in labels:
        shown = np.flatnonzero(values == label)
        ends = np.stack([bounds[shown], bounds[shown + 1]], 1).ravel()  # of zeros and ones in turn
        counts = np.diff(ends, prepend=0, append=flat.size).tolist()
        uncompressed.append({"size": list(label_map.shape), "counts": counts if counts[-1] else counts[:-1]})
    encoded = coder.frPyObjects(uncompressed, *label_map.shape) if labels else []
    return [(label, bytes(one["counts"])) for label, one in zip(labels, encoded, strict=True)]


def library() -> Any:
    """COCO's functions on masks.

    Raises:
        StoreError: faster-coco-eval is not installed.
    """
    try:
        from faster_coco_eval.core import mask
    except ImportError as error:
        needed = "masks are drawn and encoded by faster-coco-eval"
        raise StoreError(f"{needed}, which is not installed: pip install faster-coco-eval") from error
    return mask


def runs(counts: bytes, size: tuple[int, int]) -> Int64[np.ndarray, "r"]:
    """Lengths of the runs of zeros and ones in turn, zeros first, of a mask of this height and width.

    Raises:
        StoreError: these are not run lengths of a mask of this size.
    """
    coded = np.frombuffer(counts, np.uint8).astype(np.int64) - LOWEST
    problem = f"{len(counts)} bytes are not run lengths of a mask of {size[0]} x {size[1]} pixels"
    if not coded.size or coded.min() < 0 or coded.max() >= 2 * MORE or coded[-1] & MORE:
        raise StoreError(f"{problem}: characters that none has, or cut; extract the truths again")
    ends = np.flatnonzero(coded & MORE == 0)
    starts = np.concatenate([[0], ends[:-1] + 1])
    lengths = ends - starts + 1
    if lengths.max() > LONGEST:
        raise StoreError(f"{problem}: a number of {lengths.max()} bytes; extract the truths again")
    position = np.arange(len(coded)) - np.repeat(starts, lengths)
    numbers = np.add.reduceat((coded & (MORE - 1)) << (BITS * position), starts)
    is_negative = (coded[ends] & (MORE >> 1)) != 0
    numbers -= is_negative.astype(np.int64) << (BITS * lengths)
    numbers[1::2] = np.cumsum(numbers[1::2])
    numbers[2::2] = np.cumsum(numbers[2::2])
    n_pixels = size[0] * size[1]
    if numbers.min() < 0 or numbers.max() > n_pixels or numbers.sum() != n_pixels:
        found = f"{numbers.sum()} pixels, expected {n_pixels}, in runs of {numbers.min()} to {numbers.max()}"
        raise StoreError(f"{problem}: they are of {found}; extract the truths again")
    return numbers


def decode(counts: bytes, size: tuple[int, int]) -> Bool[np.ndarray, "h w"]:
    lengths = runs(counts, size)
    values = np.zeros(len(lengths), bool)
    values[1::2] = True
    return np.repeat(values, lengths).reshape(size[::-1]).T


def draw(counts: bytes, value: int, out: np.ndarray) -> None:
    """Write `value` where a mask is 1 into `out`, the map [w, h] of the mask's size, C order: columns as run lengths count."""
    lengths = runs(counts, (out.shape[1], out.shape[0]))
    ends, flat = np.cumsum(lengths), out.reshape(-1)
    for begin, end in zip(ends[:-1:2].tolist(), ends[1::2].tolist(), strict=True):
        flat[begin:end] = value


def area(counts: bytes, size: tuple[int, int]) -> int:
    return int(runs(counts, size)[1::2].sum())
