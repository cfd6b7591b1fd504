"""How tokens are stored. Adding a codec: its class, and a line here (docs/store-format.md, "Codecs")."""

from store.codecs.codec import SCALE, Codec
from store.codecs.dtypes import BFloat16, Float8, Float16, Float32, Int4, Int8
from store.errors import StoreError, unknown

CODECS: dict[str, Codec] = {
    "float32": Float32(),
    "float16": Float16(),
    "bfloat16": BFloat16(),
    "float8_e4m3": Float8(),
    "int8": Int8(),
    "int4": Int4(),
}

__all__ = ["CODECS", "SCALE", "Codec", "get_codec"]


def get_codec(name: str) -> Codec:
    """The codec of this name."""
    if name not in CODECS:
        raise StoreError(unknown("dtype", name, CODECS))
    return CODECS[name]
