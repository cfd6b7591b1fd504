"""Which arrays the features of an encoder become, and how their values are stored."""

from collections.abc import Container, Iterator, Mapping

import numpy as np
import torch
from torch import Tensor

from extract.encoders import Encoded
from store import BeyondClsError
from store.codecs import SCALE, Codec, get_codec
from store.format.layout import ArrayName, kind_of

DIMENSIONS = {
    "patch": ("image", "patch", "channel"),
    "cls": ("image", "channel"),
    "registers": ("image", "register", "channel"),
    "average": ("image", "channel"),
    "pooled": ("image", "channel"),
    "statistics": ("image", "block", "head"),  # or without the last
    "attention": ("image", "head", "patch"),
}

NARROW = ("float8_e4m3", "int8", "int4")  # codecs


def arrays_by_name(encoded: Encoded, view: int, numbered: bool = True) -> dict[str, Tensor]:
    """Features of a view by the name of their array in the store. In older sets, which have attention maps of the last block
    only, names of maps are not `numbered` by block.
    """
    arrays: dict[str, Tensor] = {}
    for kind in ("patch", "cls", "registers", "average"):
        arrays |= {str(ArrayName(kind, "", block, view)): values for block, values in getattr(encoded, kind).items()}
    if encoded.pooled is not None:
        arrays[str(ArrayName("pooled", view=view))] = encoded.pooled
    arrays |= {str(ArrayName("statistics", name, None, view)): values for name, values in encoded.statistics.items()}
    for name, values in encoded.maps.items():
        arrays[f"attention/{name if numbered else name.partition('/')[0]}/view{view}"] = values
    return arrays


def codec_of(name: str, dtype: str) -> Codec:
    """Codec of an array: `dtype` for patch tokens. Statistics stay float32, and maps have float16 at least.

    Averages, and what the encoder's own pooling gives, are float16 beside float16 tokens and float32 beside all others: on the
    quickstart, float16 averages change what nearest neighbours predict for 1 image in 2,000, bfloat16 ones for 1 in 150.

    [cls] and registers are float32 where patch tokens have fewer than 16 bits: few bytes, and some encoders have channels
    there that are a hundred times larger than the others, with which they share one scale.
    """
    kind = kind_of(name)
    if kind in ("average", "pooled"):
        return get_codec("float16" if dtype == "float16" else "float32")
    if kind == "statistics" or (kind in ("cls", "registers") and dtype in NARROW):
        return get_codec("float32")
    return get_codec(dtype if kind != "attention" or dtype == "float32" else "float16")


def stored_parts(
    features: Mapping[str, Tensor], names: Container[str], dtype: str
) -> Iterator[tuple[tuple[str, str | None], Tensor]]:
    """Arrays as they are stored, by name and suffix, made on the device of the features: it rounds, and fewer bytes are copied.

    A bool [1] of suffix None precedes those of a feature: whether its values are finite and in the range of the codec, for
    `check`. To ask here would be to wait for the device. `names`: arrays to store, suffixes included; one of the two of a codec
    with scales may be there already.
    """
    for name, values in features.items():
        if name in names or name + SCALE in names:
            codec = codec_of(name, dtype)
            if values.numel():
                low, high = values.aminmax()
                yield (name, None), ((low >= -codec.largest) & (high <= codec.largest))[None]  # NaN compares as False
            for end, part in codec.encode(values.float()).items():
                if name + end in names:
                    yield (name, end), part.contiguous()


def check(fits: Tensor, values: Tensor, name: str, dtype: str, encoder: str) -> None:
    """Refuse values that cannot be stored, NaN and Inf among them. Never is a finite value turned into an infinite one."""
    if fits:
        return
    if not values.isfinite().all():
        raise BeyondClsError(f"{encoder} gives NaN or Inf in {name}; its weights or its input are broken")
    codec_of(name, dtype).check(values, name)


def as_array(part: Tensor, name: str, end: str, dtype: str) -> np.ndarray:
    """A stored part in main memory, in the dtype that Zarr knows."""
    return part.view(torch.uint8).numpy().view(codec_of(name, dtype).parts((1, 2))[end][1])
