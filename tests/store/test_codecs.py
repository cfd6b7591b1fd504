"""Codecs one by one: known bytes, and what a codec cannot pack."""

import pytest
import torch

from store import StoreError
from store.codecs import SCALE, get_codec


def test_an_odd_width_cannot_be_packed() -> None:
    with pytest.raises(StoreError, match="int4 packs channels in pairs, but there are 7; use --dtype int8"):
        get_codec("int4").parts((2, 7))


def test_unknown_codec() -> None:
    with pytest.raises(StoreError, match="unknown dtype 'flot16'; did you mean 'float16'"):
        get_codec("flot16")


@pytest.mark.parametrize(
    ("name", "values", "expected", "scale"),
    [
        # 1.0, -2.0, the first number that rounds up, the smallest subnormal
        ("float16", [1.0, -2.0, 1 + 3 * 2**-11, 2**-24], "003c 00c0 023c 0100", None),
        ("bfloat16", [1.0, -2.0, 1 + 3 * 2**-8, 3.0], "803f 00c0 823f 4040", None),
        ("float8_e4m3", [1.0, -2.0, 448.0, 2**-9], "38 c0 7e 01", None),
        ("int8", [127.0, -127.0, 0.4, 2.5], "7f 81 00 02", [1.0]),
        # q = 7, -7, 1, 0: with 8 added 15, 1, 9, 8; the even one in the low half
        ("int4", [3.5, -3.5, 0.5, 0.0], "1f 89", [0.5]),
    ],
)
def test_known_bytes(name: str, values: list[float], expected: str, scale: list[float] | None) -> None:
    parts = get_codec(name).encode(torch.tensor([values]))
    assert bytes(parts[""].view(torch.uint8).flatten().tolist()) == bytes.fromhex(expected)
    assert (parts[SCALE].flatten().tolist() if SCALE in parts else None) == scale


def test_int4_groups() -> None:
    """gcd(D, 64) channels share a scale."""
    codec = get_codec("int4")
    for width, groups in ((768, 12), (64, 1), (96, 3), (6, 3), (2, 1)):
        assert codec.parts((5, width))[SCALE] == ((5, groups), "float16")
    values = torch.zeros(1, 128)
    values[0, 3], values[0, 64] = 700.0, 0.07
    decoded = codec.decode(codec.encode(values))
    assert decoded[0, 3] == 700
    assert decoded[0, 64] == pytest.approx(0.07, rel=1e-3)
