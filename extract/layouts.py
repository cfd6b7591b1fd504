"""Which arrays the features of an encoder become."""

from collections.abc import Mapping

from torch import Tensor

from extract.encoders import Encoded
from store import ArrayLayout

DIMENSIONS = {
    "patch": ("image", "patch", "channel"),
    "cls": ("image", "channel"),
    "registers": ("image", "register", "channel"),
    "statistics": ("image", "block", "head"),
    "attention": ("image", "head", "patch"),
}


def named(encoded: Encoded) -> dict[str, Tensor]:
    """Features by the name of their array in the store."""
    named: dict[str, Tensor] = {}
    by_block: dict[str, Mapping[int, Tensor]] = {
        "patch": encoded.patch,
        "cls": encoded.cls,
        "registers": encoded.registers,
    }
    for kind, tokens in by_block.items():
        named |= {f"{kind}/block{block}/view0": values for block, values in tokens.items()}
    named |= {f"statistics/{name}/view0": values for name, values in encoded.statistics.items()}
    named |= {f"attention/{name}/view0": values for name, values in encoded.maps.items()}
    return named


def layouts_of(encoded: Encoded, n_images: int, dtype: str, shard_rows: int, id_width: int) -> list[ArrayLayout]:
    """Layouts of all arrays, from the features of one image. Statistics stay float32."""
    layouts = [
        ArrayLayout("images/id", (n_images, id_width), "uint8", ("image", "byte"), shard_rows),
        ArrayLayout("images/label", (n_images,), "int64", ("image",), shard_rows),
        ArrayLayout("images/size", (n_images, 2), "int32", ("image", "side"), shard_rows),
        ArrayLayout("images/valid", (n_images,), "uint8", ("image",), shard_rows),
    ]
    for name, values in named(encoded).items():
        kind = name.split("/")[0]
        stored = "float32" if kind == "statistics" else dtype
        layouts.append(ArrayLayout(name, (n_images, *values.shape[1:]), stored, DIMENSIONS[kind], shard_rows))
    return layouts
