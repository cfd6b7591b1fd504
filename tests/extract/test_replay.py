"""Passes of a GPU are recorded and replayed, as far as shows without one, and on one."""

import numpy as np
import pytest
import torch

from extract.copies import Packed, Replay
from extract.run import extract
from tests.extract.late import LateStreams
from tests.extract.tiny import tiny_encoder


def doubled(images: torch.Tensor) -> Packed:
    return Packed.of([("doubled", 2 * images)])


def values_of(packed: Packed) -> list[float]:
    return dict(packed.unpacked(packed.memory.numpy()))["doubled"].view(np.float32).tolist()


def test_from_the_third_batch_on_others_are_replayed():
    streams, computed = LateStreams(), []
    replay = Replay(streams, lambda images: computed.append(images) or doubled(images))
    results, recorded = [], []
    for number in range(5):
        results.append(replay(torch.tensor([float(number)])))
        recorded.append(streams.recorded)
    assert recorded == [0, 1, 1, 1, 1]
    assert [values_of(one) for one in results] == [[0.0], [2.0], [4.0], [6.0], [8.0]], "none overwrites another"
    assert len({images.data_ptr() for images in computed[-3:]}) == 1, "always from the memory that was recorded"


def test_a_recording_that_gives_other_values_is_not_used():
    warned, noise = [], iter(range(100))
    replay = Replay(LateStreams(), lambda images: doubled(images + next(noise)), warned.append)
    assert [values_of(replay(torch.tensor([0.0]))) for _ in range(4)] == [[0.0], [2.0], [8.0], [10.0]]
    (warning,) = warned
    assert warning.endswith("started one by one, which is slower where others decode: a recording of them gives other values")


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (RuntimeError("not permitted when stream is capturing\nmore"), "not permitted when stream is capturing"),
        (torch.OutOfMemoryError("CUDA out of memory"), "there is too little memory for a recording"),
    ],
)
def test_what_cannot_be_recorded_is_computed_as_ever(error, why):
    class Refuses(LateStreams):
        def record(self, compute):
            self.recorded += 1
            raise error

    streams, warned = Refuses(), []
    replay = Replay(streams, doubled, warned.append)
    assert [values_of(replay(torch.tensor([float(n)]))) for n in range(4)] == [[0.0], [2.0], [4.0], [6.0]]
    assert streams.recorded == 1, "it is tried once"
    assert len(warned) == 1
    assert warned[0].endswith(f": {why}")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.parametrize("amp", ["none", "bf16"])
def test_the_same_bytes_on_a_gpu(amp, forty, tmp_path, monkeypatch):
    def set_by(name: str) -> list[str]:
        encoder, warned = tiny_encoder(), []
        encoder.run_with(amp=amp)
        encoder.model.to("cuda")
        options = {"batch_size": 8, "views": 2, "shard_rows": 32}
        stores.append(extract(encoder, forty, tmp_path / name, **options, warn=warned.append))
        return warned

    stores = []
    assert not set_by("replayed")
    monkeypatch.setattr(Replay, "_record", lambda *_: "not wanted")
    assert set_by("computed")
    replayed, computed = stores
    for name in replayed.arrays:
        assert (replayed.array(name).all() == computed.array(name).all()).all(), name


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA GPUs")
def test_the_same_bytes_on_a_second_gpu(forty, tmp_path):
    """Kernels, recordings and copies are of the GPU that the encoder is on, whichever is the current one."""
    stores = []
    for device in ("cuda:0", "cuda:1"):
        encoder, warned = tiny_encoder(), []
        encoder.run_with(amp="bf16")
        encoder.model.to(device)
        name = tmp_path / device.replace(":", "-")
        stores.append(extract(encoder, forty, name, batch_size=8, shard_rows=32, warn=warned.append))
        assert not warned
    first, second = stores
    for name in first.arrays:
        assert (first.array(name).all() == second.array(name).all()).all(), name


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_an_encoder_that_waits_for_a_result_is_computed_as_ever(forty, tmp_path):
    class Waits(torch.nn.Module):
        def forward(self, tokens):
            return tokens if tokens.sum().item() else tokens + 1

    encoder, warned = tiny_encoder(), []
    encoder.model.norm = Waits()
    encoder.model.to("cuda")
    stored = extract(encoder, forty, tmp_path / "f", batch_size=8, shard_rows=32, warn=warned.append)
    assert len(warned) == 1
    assert "are started one by one" in warned[0]
    assert stored.array("patch/block1/view0").all().any(axis=(1, 2)).all()
