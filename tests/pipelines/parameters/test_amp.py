"""What matrices are multiplied in where nobody says."""

import numpy as np
import pytest
import torch

from extract.run import extract
from pipelines.parameters.requested import place_encoder
from tests.extract.tiny import tiny_encoder


@pytest.fixture
def gpu(monkeypatch):
    """A GPU of capability 9.0, as far as choosing goes."""
    monkeypatch.setattr("pipelines.process.device.choose_device", lambda name: torch.device(name))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.nn.Module, "to", lambda self, *_, **__: self)


def chosen(device: str, options=(), there=None) -> str:
    encoder = tiny_encoder()
    place_encoder(encoder, dict(options), device, there)
    return encoder.compute_dtype


def test_by_the_device(gpu, monkeypatch):
    assert chosen("cuda") == "bfloat16"
    assert chosen("cpu") == "float32"
    assert chosen("cuda", {"amp": "none"}) == "float32"
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert chosen("cuda") == "float32"


def test_a_set_that_is_there_goes_on_as_it_was_made(gpu, tmp_path):
    encoder, images = tiny_encoder(), np.random.default_rng(0).integers(256, size=(2, 32, 32, 3), dtype=np.uint8)
    extract(encoder, images, tmp_path / "on-cpu")
    assert chosen("cuda", there=tmp_path / "on-cpu") == "float32"
    assert chosen("cuda", {"amp": "fp16"}, tmp_path / "on-cpu") == "float16"
    encoder.run_with(amp="bf16")
    extract(encoder, images, tmp_path / "in-bf16")
    assert chosen("cpu", there=tmp_path / "in-bf16") == "bfloat16"
    (tmp_path / "in-bf16" / "zarr.json").write_text("{")
    assert chosen("cpu", there=tmp_path / "in-bf16") == "float32", "what is wrong with it is said later"
