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
    streams, computed, recorded = LateStreams(), [], []
    replay = Replay(streams, lambda images: computed.append(images) or doubled(images))
    results = []
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
    assert warning.endswith("a recording of them gives other values")


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
    (warning,) = warned
    assert warning.endswith(f": {why}")


NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")


@pytest.fixture
def extracted(forty, tmp_path):

    def extracted(device="cuda", amp="bf16", norm=None, **options):
        encoder, warned = tiny_encoder(), []
        encoder.run_with(amp=amp)
        encoder.model.norm = norm or encoder.model.norm
        encoder.model.to(device)
        out = tmp_path / str(len(list(tmp_path.iterdir())))
        return extract(encoder, forty, out, batch_size=8, shard_rows=32, warn=warned.append, **options), warned

    return extracted


def assert_same(one, other):
    for name in one.arrays:
        assert (one.array(name).all() == other.array(name).all()).all(), name


@pytest.mark.gpu
@NEEDS_GPU
@pytest.mark.parametrize("amp", ["none", "bf16"])
def test_the_same_bytes_on_a_gpu(amp, extracted, monkeypatch):
    replayed, warned = extracted(amp=amp, views=2)
    assert not warned
    monkeypatch.setattr(Replay, "_record", lambda *_: "not wanted")
    computed, warned = extracted(amp=amp, views=2)
    assert warned
    assert_same(replayed, computed)


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA GPUs")
def test_the_same_bytes_on_a_second_gpu(extracted):
    """Kernels, recordings and copies are of the GPU that the encoder is on, whichever is the current one."""
    (first, warned), (second, warned_too) = (extracted(device) for device in ("cuda:0", "cuda:1"))
    assert not warned + warned_too
    assert_same(first, second)


@pytest.mark.gpu
@NEEDS_GPU
def test_an_encoder_that_waits_for_a_result_is_computed_as_ever(extracted):
    class Waits(torch.nn.Module):
        def forward(self, tokens):
            return tokens if tokens.sum().item() else tokens + 1

    stored, (warning,) = extracted(amp="none", norm=Waits())
    assert "are started one by one" in warning
    assert stored.array("patch/block1/view0").all().any(axis=(1, 2)).all()
