"""Codecs one by one: known bytes, what a codec cannot pack, and values that are decoded where they are used."""

import pytest
import torch
from torch import Tensor

from store import StoreError
from store.codecs import CODECS, SCALE, get_codec
from store.codecs.codec import Coded, plain


def test_what_cannot_be_coded():
    with pytest.raises(StoreError, match="unknown dtype 'flot16'; did you mean 'float16'"):
        get_codec("flot16")
    with pytest.raises(StoreError, match="int4 packs channels in pairs, but there are 7; use --dtype int8"):
        get_codec("int4").parts((2, 7))


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
def test_known_bytes(name, values, expected, scale):
    parts = get_codec(name).encode(torch.tensor([values]))
    assert bytes(parts[""].view(torch.uint8).flatten().tolist()) == bytes.fromhex(expected)
    assert (parts[SCALE].flatten().tolist() if SCALE in parts else None) == scale


def test_int4_groups():
    """gcd(D, 64) channels share a scale."""
    codec = get_codec("int4")
    for width, groups in ((768, 12), (64, 1), (96, 3), (6, 3), (2, 1)):
        assert codec.parts((5, width))[SCALE] == ((5, groups), "float16")
    values = torch.zeros(1, 128)
    values[0, 3], values[0, 64] = 700.0, 0.07
    decoded = codec.decode(codec.encode(values))
    assert decoded[0, 3] == 700
    assert decoded[0, 64] == pytest.approx(0.07, rel=1e-3)


def coded(codec):
    """Values of a codec, and the same decoded."""
    parts = CODECS[codec].encode(torch.randn(5, 3, 64, generator=torch.Generator().manual_seed(0)))
    return Coded(CODECS[codec], parts), CODECS[codec].decode(parts)


def test_which_are_decoded_where_they_are_used():
    fast = {name for name, codec in CODECS.items() if codec.decodes_fast and codec.decoded != codec.stored}
    assert fast == {"bfloat16", "int8", "int4"}


@pytest.mark.parametrize("codec", CODECS)
def test_it_is_the_tensor_that_it_decodes_to(codec):
    values, expected = coded(codec)
    assert (values.shape, values.dtype, values.device, len(values)) == (expected.shape, expected.dtype, expected.device, 5)
    for result, theirs in (
        (values + 1, expected + 1),
        (values[1:3], expected[1:3]),
        (torch.cat([expected, values]), torch.cat([expected, expected])),
        (values.reshape(5, -1).float() @ torch.ones(3 * 64), expected.reshape(5, -1).float() @ torch.ones(3 * 64)),
        (plain(values), expected),
        (plain(expected), expected),
    ):
        assert type(result) is Tensor
        assert torch.equal(result, theirs)
    assert torch.equal(values.decoded(slice(1, 3)), expected[1:3])
    assert values.isfinite().all()
    assert isinstance(values.detach(), Coded)
    assert repr(values) == f"Coded({codec}, [5, 3, 64], cpu)"


def test_nothing_is_written_into_it():
    values, expected = coded("int8")
    for change in (lambda: values.add_(1), values.zero_):
        with pytest.raises(AssertionError, match="would change values that are coded"):
            change()
    assert torch.equal(values.decoded(), expected)
    assert torch.equal(torch.zeros_like(expected).add_(values), expected)  # from it, they are


def test_a_stream_that_uses_it_uses_its_parts():
    values, noted = coded("int8")[0], []
    for part in values.parts.values():
        part.record_stream = noted.append
    values.record_stream("stream")
    assert noted == ["stream", "stream"]
