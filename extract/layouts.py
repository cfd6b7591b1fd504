"""Which arrays the features of an encoder become."""

from collections.abc import Mapping

from torch import Tensor

from extract.annotations import annotation_layouts
from extract.datasets import ImageSet
from extract.encoders import Encoded
from store import ArrayLayout
from store.codecs import Codec, get_codec
from store.format.layout import DIGEST, ArrayName, kind_of, shard_rows_of

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
    """Features of a view by the name of their array in the store.

    Args:
        numbered: whether names of attention maps say their block; in older sets, which have only the last block's, they don't.
    """
    arrays: dict[str, Tensor] = {}
    by_block: dict[str, Mapping[int, Tensor]] = {
        "patch": encoded.patch,
        "cls": encoded.cls,
        "registers": encoded.registers,
        "average": encoded.average,
    }
    for kind, tokens in by_block.items():
        arrays |= {str(ArrayName(kind, "", block, view)): values for block, values in tokens.items()}
    if encoded.pooled is not None:
        arrays[str(ArrayName("pooled", view=view))] = encoded.pooled
    arrays |= {str(ArrayName("statistics", name, None, view)): values for name, values in encoded.statistics.items()}
    for name, values in encoded.maps.items():
        arrays[f"attention/{name if numbered else name.partition('/')[0]}/view{view}"] = values
    return arrays


def view_of(name: str) -> int | None:
    """Which view an array belongs to; None if to the image."""
    return ArrayName.parse(name).view


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


def layouts_of(
    encoded: Encoded,
    images: ImageSet,
    n_views: int,
    dtype: str,
    shard_rows: int | None,
    id_width: int,
    numbered: bool = True,
) -> list[ArrayLayout]:
    """Layouts of all arrays, from the features of one view; shards of a size that suits the set if none is given.

    `numbered`: as for `arrays_by_name`.

    Raises:
        StoreError: tokens of this width cannot be stored in this dtype.
    """
    n_images = len(images)
    features = {
        name: (codec_of(name, dtype), (n_images, *values.shape[1:]))
        for view in range(n_views)
        for name, values in arrays_by_name(encoded, view, numbered).items()
    }
    if shard_rows is None:
        widest = max(codec.nbytes((1, *shape[1:])) for codec, shape in features.values())
        shard_rows = shard_rows_of(widest, n_images)
    layouts = [
        ArrayLayout("images/id", (n_images, id_width), "uint8", ("image", "byte"), shard_rows),
        ArrayLayout(DIGEST, (n_images, 16), "uint8", ("image", "byte"), shard_rows),
        *annotation_layouts(images, shard_rows),
        ArrayLayout("images/size", (n_images, 2), "int32", ("image", "side"), shard_rows),
        ArrayLayout("images/valid", (n_images,), "uint8", ("image",), shard_rows),
    ]
    for view in range(n_views):
        layouts.append(ArrayLayout(f"images/crop/view{view}", (n_images, 4), "float32", ("image", "side"), shard_rows))
        layouts.append(ArrayLayout(f"images/flip/view{view}", (n_images,), "uint8", ("image",), shard_rows))
    for name, (codec, shape) in features.items():
        dimensions = DIMENSIONS[kind_of(name)]
        for end, (stored, zarr_dtype) in codec.parts(shape).items():
            main_codec = codec.name if not end else None
            layouts.append(ArrayLayout(name + end, stored, zarr_dtype, dimensions[: len(stored)], shard_rows, codec=main_codec))
    return layouts
