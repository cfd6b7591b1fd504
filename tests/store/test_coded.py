"""Values that stay as they are stored until they are used."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from store import Loader
from store.codecs import CODECS
from store.codecs.coded import Coded, plain
from store.loading.placement import Placement
from tests.store.test_fake_gpu import NAME, N, stored_as

EACH = pytest.mark.parametrize("codec", CODECS)
FAST = ("bfloat16", "int8", "int4")  # decoded by computing, and fast


def coded(codec: str, n: int = 5) -> tuple[Coded, Tensor]:
    """Values of a codec, and the same decoded."""
    parts = CODECS[codec].encode(torch.randn(n, 3, 64, generator=torch.Generator().manual_seed(0)))
    return Coded(CODECS[codec], parts), CODECS[codec].decode(parts)


@EACH
def test_it_is_the_tensor_that_it_decodes_to(codec: str) -> None:
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


@pytest.mark.parametrize("change", ["add_", "zero_"])
def test_nothing_is_written_into_it(change: str) -> None:
    values, expected = coded("int8")
    with pytest.raises(AssertionError, match="would change values that are coded"):
        getattr(values, change)(*([1] if change == "add_" else []))
    assert torch.equal(values.decoded(), expected)
    assert torch.equal(torch.zeros_like(expected).add_(values), expected)  # from it, they are


def test_a_stream_that_uses_it_uses_its_parts() -> None:
    values, noted = coded("int8")[0], []
    for part in values.parts.values():
        part.record_stream = noted.append  # type: ignore[method-assign]
    values.record_stream("stream")
    assert noted == ["stream", "stream"]


@EACH
@pytest.mark.parametrize("placement", ["memory", "stream"])
def test_batches_as_they_are_stored(tmp_path: Path, codec: str, placement: Placement) -> None:
    store = stored_as(codec, tmp_path / "set")
    batches = [
        list(Loader({"x": store.array(NAME)}, np.arange(N), batch_size=16, placement=placement, dtype=dtype).epoch())  # type: ignore[arg-type]
        for dtype in (None, "stored")
    ]
    for decoded, stored in zip(*batches, strict=True):
        assert isinstance(stored["x"], Coded) is (codec in FAST)
        assert torch.equal(plain(stored["x"]), decoded["x"])
        assert torch.equal(stored["row"], decoded["row"])
