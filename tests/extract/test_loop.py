"""Images are decoded beside the thread that encodes; features are stored without a wait for the device, refused where they do
not fit.
"""

import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from PIL import Image
from torch._subclasses.fake_tensor import FakeTensorMode

from extract.datasets import ImageSet
from extract.loop import Passes, as_array, check, decoders, stored_parts
from extract.requests import Request
from store import BeyondClsError
from store.codecs import CODECS, SCALE
from tests.extract.tiny import tiny_encoder
from tests.fake_gpu import ON_A_FAKE_GPU

NAME = "patch/block1/view0"
SIDE = 256  # pixels: PyTorch shares the work of copying so many among its threads


@pytest.fixture
def request_of(forty: ImageSet):
    return lambda dtype: Request.resolve(tiny_encoder(), forty, dtype=dtype)


def flag(values: torch.Tensor, request: Request) -> bool:
    (_, end), fits = next(stored_parts({NAME: values}, [NAME], request))
    assert end is None
    return bool(fits)


@pytest.mark.parametrize("dtype", CODECS)
def test_the_limits(dtype: str, request_of) -> None:
    request, largest = request_of(dtype), CODECS[dtype].largest
    largest = torch.tensor(largest, dtype=torch.float64).clamp(max=torch.finfo(torch.float32).max).item()
    for extreme in (largest, -largest):
        values = torch.zeros(2, 3, 4)
        values[1, 2, 3] = extreme
        assert flag(values, request)
        if (beyond := torch.nextafter(torch.tensor(extreme), torch.tensor(extreme * math.inf))).isfinite():
            values[1, 2, 3] = beyond
            assert not flag(values, request)
            with pytest.raises(BeyondClsError, match=rf"{NAME} reaches .* beyond the range of {dtype}"):
                check(torch.tensor([False]), values, NAME, request)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", CODECS)
def test_not_finite(bad: float, dtype: str, request_of) -> None:
    values, request = torch.zeros(2, 3, 4), request_of(dtype)
    values[0, 1, 2] = bad
    assert not flag(values, request)
    with pytest.raises(BeyondClsError, match=f"tiny gives NaN or Inf in {NAME}; its weights or its input are broken"):
        check(torch.tensor([False]), values, NAME, request)


def test_nothing_fits(request_of) -> None:
    assert flag(torch.zeros(2, 0, 4), request_of("float16"))


@pytest.mark.parametrize("dtype", CODECS)
def test_bits_and_dtypes(dtype: str, request_of) -> None:
    request, values = request_of(dtype), torch.randn(2, 3, 64, generator=torch.Generator().manual_seed(0))
    parts = {end: part for (_, end), part in stored_parts({NAME: values}, [NAME, NAME + SCALE], request) if end is not None}
    for end, expected in CODECS[dtype].encode(values).items():
        array = as_array(parts[end], NAME, end, request)
        shape, zarr_dtype = CODECS[dtype].parts((2, 3, 64))[end]
        assert (array.shape, array.dtype) == (shape, zarr_dtype)
        assert array.tobytes() == expected.contiguous().view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("dtype", CODECS)
def test_only_what_is_missing(dtype: str, request_of) -> None:
    values, request = torch.zeros(2, 3, 64), request_of(dtype)
    wanted = [NAME] if dtype not in ("int8", "int4") else [NAME + SCALE]
    given = [
        name + end
        for (name, end), _ in stored_parts({NAME: values, "cls/block1/view0": values}, wanted, request)
        if end is not None
    ]
    assert given == wanted


@ON_A_FAKE_GPU
@pytest.mark.parametrize("dtype", CODECS)
def test_on_the_device_without_a_wait(dtype: str, request_of) -> None:
    """A fake device has no values to wait for, and refuses operations that mix it with the CPU."""
    request = request_of(dtype)
    with FakeTensorMode():
        features = {
            NAME: torch.zeros(2, 16, 64, device="cuda"),
            "statistics/cls_self/view0": torch.zeros(2, 2, 2, device="cuda"),
        }
        parts = list(stored_parts(features, [*features, NAME + SCALE], request))
    assert {part.device.type for _, part in parts} == {"cuda"}
    assert len(parts) == 4 + (dtype in ("int8", "int4"))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize("dtype", CODECS)
def test_a_gpu_rounds_alike(dtype: str, request_of) -> None:
    request, values = request_of(dtype), torch.randn(64, 16, 64, generator=torch.Generator().manual_seed(0)) * 3
    names = [NAME, NAME + SCALE]
    ours, theirs = (list(stored_parts({NAME: x}, names, request)) for x in (values, values.cuda()))
    for (_, one), (_, other) in zip(ours, theirs, strict=True):
        assert torch.equal(one.view(torch.uint8), other.cpu().view(torch.uint8))


class OneImage:
    """A single picture, from memory."""

    samples = (SimpleNamespace(id="0", problem=None),)

    def image(self, row: int, held: object = None) -> Image.Image:
        return Image.linear_gradient("L").convert("RGB").resize((SIDE + 20, SIDE))


@pytest.fixture
def four_threads() -> Iterator[None]:
    """PyTorch has as many to share its work among."""
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


def n_threads() -> int:
    """Of this process, those of OpenMP included."""
    return len(list(Path("/proc/self/task").iterdir()))


@pytest.mark.usefixtures("four_threads")
def test_a_decoder_wakes_no_threads_of_pytorch() -> None:
    """They would take turns with those that encode: extraction by two cores was a fifth slower."""
    encoder = tiny_encoder(img_size=SIDE)
    targets = torch.zeros(2, 3, SIDE, SIDE, dtype=torch.uint8)
    request: Any = SimpleNamespace(encoder=encoder, images=OneImage())
    with ThreadPoolExecutor(1) as decoders:
        decoders.submit(bool).result()
        before = n_threads()
        decoded = decoders.submit(Passes(request, 2, decoders).decode, 0, [0, 1], {0: targets[0], 1: targets[1]}).result()
        assert n_threads() == before
        decoders.submit(torch.zeros_like(targets).copy_, targets.transpose(2, 3)).result()
        assert n_threads() > before  # so they would have been seen
    assert decoded.problem is None
    for view, pixels in enumerate(targets):
        assert torch.equal(pixels, encoder.views.cut(request.images.image(0), "0", view)[0])


@pytest.mark.parametrize(("n", "device", "expected"), [(None, "cpu", 4), (None, "cuda", 6), (3, "cuda", 3), (9, "cpu", 9)])
def test_as_many_threads_as_cores_beside_a_gpu(n: int | None, device: str, expected: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(6)
    try:
        with decoders(n, torch.device(device)) as threads:
            assert threads._max_workers == expected
    finally:
        torch.set_num_threads(before)
