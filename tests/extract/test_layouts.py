"""Features as they are stored: refused where they do not fit, and made without a wait for the device."""

import math

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from extract.copies import bytes_of
from extract.layouts import check, codec_of, stored_parts
from store import BeyondClsError
from store.codecs import CODECS, SCALE
from tests.fake_gpu import ON_A_FAKE_GPU

NAME = "patch/block1/view0"


def checked(values: torch.Tensor, dtype: str) -> None:
    (_, end), extremes = next(stored_parts({NAME: values}, [NAME], dtype))
    assert end is None
    check(bytes_of(extremes), NAME, dtype, "tiny")


@pytest.mark.parametrize("dtype", CODECS)
def test_only_patch_tokens_are_stored_in_few_bits(dtype):
    """Averages, and what the encoder pools, are half precision beside tokens of half precision alone."""
    few, half = dtype not in ("float32", "float16", "bfloat16"), "float16" if dtype == "float16" else "float32"
    token = "float32" if few else dtype
    maps = "float32" if dtype == "float32" else "float16"
    names = {NAME: dtype, "cls/block1/view0": token, "registers/block1/view0": token, "statistics/cls_self/view0": "float32"}
    names |= {"average/block1/view0": half, "pooled/view0": half, "attention/cls/block1/view0": maps}
    assert {name: codec_of(name, dtype).name for name in names} == names


@pytest.mark.parametrize("dtype", CODECS)
def test_the_limits(dtype):
    largest = torch.tensor(CODECS[dtype].largest, dtype=torch.float64).clamp(max=torch.finfo(torch.float32).max).item()
    values = torch.zeros(2, 3, 4)
    for extreme in (largest, -largest):
        values[1, 2, 3] = extreme
        checked(values, dtype)
        if (beyond := torch.nextafter(torch.tensor(extreme), torch.tensor(extreme * math.inf))).isfinite():
            values[1, 2, 3] = beyond
            with pytest.raises(BeyondClsError, match=rf"{NAME} reaches .* beyond the range of {dtype}"):
                checked(values, dtype)
    for bad in (math.nan, math.inf, -math.inf):
        values[1, 2, 3] = bad
        with pytest.raises(BeyondClsError, match=f"tiny gives NaN or Inf in {NAME}; its weights or its input are broken"):
            checked(values, dtype)


def test_nothing_fits():
    assert [end for (_, end), _ in stored_parts({NAME: torch.zeros(2, 0, 4)}, [NAME], "float16")] == [""]


@pytest.mark.parametrize("dtype", CODECS)
def test_only_what_is_missing(dtype):
    values = torch.zeros(2, 3, 64)
    wanted = [NAME] if dtype not in ("int8", "int4") else [NAME + SCALE]
    parts = stored_parts({NAME: values, "cls/block1/view0": values}, wanted, dtype)
    assert [name + end for (name, end), _ in parts if end is not None] == wanted


@ON_A_FAKE_GPU
@pytest.mark.parametrize("dtype", CODECS)
def test_on_the_device_without_a_wait(dtype):
    """A fake device has no values to wait for, and refuses operations that mix it with the CPU."""
    with FakeTensorMode():
        shapes = {NAME: (2, 16, 64), "statistics/cls_self/view0": (2, 2, 2)}
        features = {name: torch.zeros(shape, device="cuda") for name, shape in shapes.items()}
        parts = list(stored_parts(features, [*features, NAME + SCALE], dtype))
    assert {part.device.type for _, part in parts} == {"cuda"}
    assert len(parts) == 4 + (dtype in ("int8", "int4"))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize("dtype", CODECS)
def test_a_gpu_rounds_alike(dtype):
    values = torch.randn(64, 16, 64, generator=torch.Generator().manual_seed(0)) * 3
    names = [NAME, NAME + SCALE]
    ours, theirs = (list(stored_parts({NAME: x}, names, dtype)) for x in (values, values.cuda()))
    for (_, one), (_, other) in zip(ours, theirs, strict=True):
        assert torch.equal(one.view(torch.uint8), other.cpu().view(torch.uint8))
