"""What holds for every codec: what comes back is within the bound, and what cannot be stored is refused."""

import math
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from store import Loader, StoreError
from store.codecs import CODECS, Codec
from store.codecs.codec import Cast, Coded, plain
from tests.store.test_gpu_batches import NAME, stored_as

EACH = pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)


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
    """Also where float32 is subnormal, and at the largest numbers that can be stored. What is given is left alone."""
    values = values_of(codec, shape, magnitude, seed)
    before = values.clone()
    assert CODECS[codec.name] is codec
    codec.check(values, "x")
    parts = codec.encode(values)
    kept = {end: part.clone() for end, part in parts.items()}
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
    assert torch.equal(values, before)
    assert all(torch.equal(parts[end].view(torch.uint8), kept[end].view(torch.uint8)) for end in parts)


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
@pytest.mark.parametrize("bad", [math.nan, -math.inf])
def test_only_finite_values(codec: Codec, bad: float) -> None:
    values = torch.ones(2, 4)
    values[1, 2] = bad
    with pytest.raises(StoreError, match="patch of block 3 holds NaN or Inf"):
        codec.check(values, "patch of block 3")
    codec.check(values[:0], "nothing")


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
def test_a_written_set_gives_what_the_codec_gives(tmp_path: Path, codec: Codec) -> None:
    """Read at once, and in batches: decoded, in another dtype, or as they are stored."""
    store, values = stored_as(codec.name, tmp_path / "set")
    expected, reader = codec.decode(codec.encode(values)), store.array(NAME)
    assert reader.shape == tuple(values.shape)
    assert reader.nbytes == codec.nbytes(tuple(values.shape))
    order = np.random.default_rng(0).permutation(len(values))
    read = reader.rows(order)
    assert read.dtype == reader.dtype
    np.testing.assert_array_equal(read, expected[order].numpy() if codec.decoded != torch.float16 else expected[order])
    dtypes: dict[Any, torch.dtype] = {None: codec.decoded, "stored": codec.decoded, torch.float32: torch.float32}
    for placement, dtype in product(("memory", "stream"), dtypes):
        loader = Loader({"x": reader}, np.arange(len(values)), batch_size=16, placement=placement, dtype=dtype)
        for batch in loader.epoch():
            is_coded = dtype == "stored" and codec.decodes_fast and codec.decoded != codec.stored
            assert isinstance(batch["x"], Coded) == is_coded
            assert batch["x"].dtype == dtypes[dtype]
            assert torch.equal(plain(batch["x"]), expected[batch["row"]].to(dtypes[dtype]))
