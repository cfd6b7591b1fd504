"""Where memory does not suffice for a batch, smaller ones go on."""

from typing import Any

import pytest
import torch

from extract.encoders import Encoder
from extract.requests import Request
from extract.run import create, extract
from extract.writing import Settings
from store import BeyondClsError
from tests.extract.tiny import tiny_encoder
from tests.folders import files


class Narrow(Encoder):
    """Has memory for `room` images."""

    room = 5
    error: Exception = torch.OutOfMemoryError("CUDA out of memory")

    def __call__(self, images: torch.Tensor, *arguments: Any, **named: Any) -> Any:
        if len(images) > self.room:
            raise self.error
        return super().__call__(images, *arguments, **named)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:117] . DefaultCPUAllocator: can't allocate memory: you tried"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("MPS backend out of memory (MPS allocated: 9.00 GB, other allocations: 1.00 KB, max allowed: 9.07 GB)"),
        RuntimeError("std::bad_alloc"),
        MemoryError(),
    ],
)
def test_batches_are_halved(error, forty, tmp_path):
    narrow = Narrow("tiny", tiny_encoder().model, {})
    narrow.error = error
    warned = []
    options = {"shard_rows": 32, "views": 2, "drop_path": 0.9}  # each image is to keep its own draws
    extract(narrow, forty, tmp_path / "narrow", batch_size=32, **options, warn=warned.append)
    assert warned == [f"out of memory: going on with batches of {n}" for n in (16, 8, 4)]
    extract(Encoder("tiny", narrow.model, {}), forty, tmp_path / "wide", batch_size=4, **options)
    assert files(tmp_path / "narrow") == files(tmp_path / "wide")


def test_not_even_one_image(forty, tmp_path):
    request = Request.resolve(Narrow("tiny", tiny_encoder().model, {}), forty)
    assert request.example.patch
    request.encoder.room = 0
    with pytest.raises(BeyondClsError, match="memory does not suffice for one image through tiny; stop what else uses it"):
        create(request, tmp_path / "f", Settings(batch_size=2))


def test_other_errors_are_not_taken_for_it(forty, tmp_path):
    narrow = Narrow("tiny", tiny_encoder().model, {})
    narrow.error = RuntimeError("mat1 and mat2 shapes cannot be multiplied")
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        extract(narrow, forty, tmp_path / "f", batch_size=32)
