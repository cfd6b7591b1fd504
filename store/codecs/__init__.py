"""How tokens are stored: one codec a file. Adding one: its class, and a line here (docs/store-format.md, "Codecs")."""

from store.codecs.bfloat16 import BFloat16
from store.codecs.codec import SCALE, Codec
from store.codecs.float8 import Float8
from store.codecs.float16 import Float16
from store.codecs.float32 import Float32
from store.codecs.int4 import Int4
from store.codecs.int8 import Int8
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
    """The codec of this name.

    Raises:
        StoreError: no such codec.
    """
    if name not in CODECS:
        raise StoreError(unknown("dtype", name, CODECS))
    return CODECS[name]
