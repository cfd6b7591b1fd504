"""What holds for every codec: what comes back is within the bound, and what cannot be stored is refused."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from store import ArrayLayout, FeatureStore, Loader, StoreError
from store.codecs import CODECS, Codec
from store.codecs.codec import Cast
from tests.store.conftest import write

EACH = pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
CASTS = pytest.mark.parametrize("codec", [c for c in CODECS.values() if isinstance(c, Cast)], ids=lambda c: c.name)


def values_of(codec: Codec, shape: tuple[int, ...], magnitude: float, seed: int) -> torch.Tensor:
    """Of both signs, spread over orders of magnitude below `magnitude` (a power of two), zeros among them."""
    generator = np.random.default_rng(seed)
    exponents = generator.uniform(-30, 0, shape)
    values = generator.choice([-1.0, 1.0, 0.0], shape, p=[0.45, 0.45, 0.1]) * 2.0 ** (magnitude + exponents)
    return torch.from_numpy(values.clip(-codec.largest, codec.largest)).float()


@EACH
@settings(max_examples=60, deadline=None)
@given(
    shape=st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(1, 40).map(lambda k: 2 * k)),
    magnitude=st.integers(-150, 128),
    seed=st.integers(0, 2**32 - 1),
)
def test_round_trip_within_the_bound(codec: Codec, shape: tuple[int, ...], magnitude: int, seed: int) -> None:
    """Also where float32 is subnormal, and at the largest numbers that can be stored."""
    values = values_of(codec, shape, magnitude, seed)
    assert CODECS[codec.name] is codec
    codec.check(values, "x")
    parts = codec.encode(values.clone())
    stored = codec.parts(shape)
    assert parts.keys() == stored.keys()
    for end, (expected, dtype) in stored.items():
        assert tuple(parts[end].shape) == expected
        assert parts[end].element_size() == getattr(torch, dtype).itemsize
    assert (parts[""].dtype, getattr(torch, codec.zarr_dtype).itemsize) == (codec.stored, codec.stored.itemsize)
    assert codec.shape(tuple(parts[""].shape)) == shape
    decoded = codec.decode(parts)
    assert (decoded.dtype, tuple(decoded.shape)) == (codec.decoded, shape)
    error = (decoded.double() - values.double()).abs()
    assert decoded.isfinite().all()
    assert (error <= codec.bound(values)).all(), (error - codec.bound(values)).max()


@CASTS
@settings(max_examples=60, deadline=None)
@given(bits=st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=50))
def test_any_float_within_the_bound(codec: Codec, bits: list[int]) -> None:
    values = torch.from_numpy(np.array(bits, np.uint32).view(np.float32))
    values = values[values.isfinite() & (values.abs() <= codec.largest)]
    error = (codec.decode(codec.encode(values)).double() - values.double()).abs()
    assert (error <= codec.bound(values)).all()


@EACH
def test_the_bound_is_no_larger_than_it_need_be(codec: Codec) -> None:
    """Some value comes close to it, if it is not 0."""
    values = values_of(codec, (200, 1, 64), 3, 0)
    error = (codec.decode(codec.encode(values)).double() - values.double()).abs()
    bound = codec.bound(values)
    assert (error[bound > 0] / bound[bound > 0]).max() > 0.9 if bound.max() > 0 else not error.any()


@EACH
def test_zeros_are_exact(codec: Codec) -> None:
    assert (codec.decode(codec.encode(torch.zeros(2, 3, 8))) == 0).all()
    values = torch.tensor([[0.0, 1.0, -0.5, 0.0]])
    assert (codec.decode(codec.encode(values))[values == 0] == 0).all()


@EACH
def test_what_was_decoded_is_stored_as_it_is(codec: Codec) -> None:
    """A second rounding changes nothing for formats without scales."""
    values = codec.decode(codec.encode(values_of(codec, (5, 2, 16), 4, 1))).float()
    again = codec.decode(codec.encode(values)).float()
    if isinstance(codec, Cast):
        assert torch.equal(again, values)
    else:
        assert ((again - values).abs() <= codec.bound(values)).all()


@EACH
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_only_finite_values(codec: Codec, bad: float) -> None:
    values = torch.ones(2, 4)
    values[1, 2] = bad
    with pytest.raises(StoreError, match="patch of block 3 holds NaN or Inf; only finite values can be stored"):
        codec.check(values, "patch of block 3")


@EACH
def test_the_largest_value_that_can_be_stored(codec: Codec) -> None:
    limit = torch.tensor([[codec.largest, -codec.largest, 0.0, 1.0]], dtype=torch.float64).float()
    codec.check(limit, "x")
    assert codec.decode(codec.encode(limit)).isfinite().all()
    if codec.largest < torch.finfo(torch.float32).max:
        beyond = torch.nextafter(limit, limit * 2)
        with pytest.raises(StoreError, match=rf"x reaches .*beyond the range of {codec.name} .*--dtype float32"):
            codec.check(beyond, "x")


@EACH
def test_nothing_to_check(codec: Codec) -> None:
    codec.check(torch.zeros(0, 4), "x")


@EACH
def test_values_are_left_alone(codec: Codec) -> None:
    values = values_of(codec, (3, 2, 8), 2, 5)
    before = values.clone()
    parts = codec.encode(values)
    kept = {end: part.clone() for end, part in parts.items()}
    codec.decode(parts)
    codec.bound(values)
    codec.check(values, "x")
    assert torch.equal(values, before)
    assert all(torch.equal(parts[end].view(torch.uint8), kept[end].view(torch.uint8)) for end in parts)


@EACH
def test_a_written_set_gives_what_the_codec_gives(tmp_path: Path, codec: Codec) -> None:
    n, name = 70, "patch/block5/view0"
    values = values_of(codec, (n, 3, 8), 3, 2)
    arrays, contents = [ArrayLayout("images/label", (n,), "int64", ("image",), 32)], {"images/label": np.arange(n)}
    parts = codec.encode(values)
    for end, (shape, dtype) in codec.parts(tuple(values.shape)).items():
        dimensions = ("image", "patch", "channel") if len(shape) == 3 else ("image", "patch")
        arrays.append(ArrayLayout(name + end, shape, dtype, dimensions, 32, codec=None if end else codec.name))
        contents[name + end] = parts[end].contiguous().view(getattr(torch, dtype)).numpy()
    write(tmp_path / "s", arrays, contents, dtype=codec.name)
    expected = codec.decode(parts)
    reader = FeatureStore.open(tmp_path / "s").tokens("patch")
    assert reader.shape == tuple(values.shape)
    assert reader.nbytes == codec.nbytes(tuple(values.shape))
    order = np.random.default_rng(0).permutation(n)
    read = reader.rows(order)
    assert read.dtype == reader.dtype
    np.testing.assert_array_equal(read, expected[order].numpy() if codec.decoded != torch.float16 else expected[order])
    assert list(FeatureStore.open(tmp_path / "s").rows([3])) == ["images/label", name]
    for placement in ("memory", "stream"):
        options: dict[str, Any] = {"placement": placement, "dtype": None, "batch_size": 20}
        for batch in Loader({"x": reader}, np.arange(n), **options).epoch():
            assert batch["x"].dtype == codec.decoded
            assert torch.equal(batch["x"], expected[batch["row"]])
        for batch in Loader({"x": reader}, np.arange(n), **{**options, "dtype": torch.float32}).epoch():
            assert torch.equal(batch["x"], expected[batch["row"]].float())
