"""Pixels reach the device one batch ahead of the encoder, features leave it one behind; the order of CUDA's streams."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from unittest.mock import MagicMock, call

import numpy as np
import pytest
import torch

from extract.copies import Buffers, Copies, Packed, Streams, bytes_of
from extract.loop import Passes, Unit, Units
from extract.requests import Request
from extract.run import extract
from extract.stages import COPYING_BACK, ENCODING, StageTimes
from tests.extract.late import LateEvent, LateStreams
from tests.extract.tiny import tiny_encoder
from tests.folders import files


def numbers(*values: int) -> Packed:
    return Packed.of((value, torch.tensor([value])) for value in values)


def test_tensors_in_one_piece_of_memory():
    given = {
        "bytes": torch.arange(3, dtype=torch.uint8),
        "none": torch.zeros(2, 0, 4),
        "turned": torch.randn(3, 5).T,
        "eight": torch.randn(7).to(torch.float8_e4m3fn),
        "wide": torch.randn(2, dtype=torch.float64),
    }
    packed = Packed.of(given.items())
    unpacked = dict(packed.unpacked(packed.memory.numpy()))
    assert list(unpacked) == list(given)
    for name, values in given.items():
        assert unpacked[name].shape == bytes_of(values).shape
        assert unpacked[name].tobytes() == bytes_of(values).tobytes()
    assert torch.equal(packed.memory, Packed.of(given.items()).memory)
    assert not dict(Packed.of([]).unpacked(packed.memory.numpy()))


def test_two_behind():
    copies, go, kept = Copies(LateStreams(), StageTimes()), threading.Event(), []

    def waits(key, value):
        go.wait()
        keep(key, value)

    def keep(key, value):
        kept.append((key, value.view(np.int64).item()))

    copies.run(numbers(1), waits)  # returns, though it cannot end yet
    copies.run(numbers(2), keep)
    assert not kept
    go.set()
    copies.run(numbers(3, 4), keep)
    assert kept[0] == (1, 1), "the first are kept"
    copies.wait(1)
    assert kept[:2] == [(1, 1), (2, 2)]
    copies.wait()
    assert kept == [(1, 1), (2, 2), (3, 3), (4, 4)]
    assert copies.n_begun == 3


def test_an_error_is_raised_with_later_features_or_at_the_end():
    copies, kept = Copies(LateStreams(), StageTimes()), []
    copies.run(numbers(1), lambda key, value: 1 / 0)
    copies.run(numbers(2), lambda key, value: kept.append(key))
    with pytest.raises(ZeroDivisionError):
        copies.run(numbers(3), lambda key, value: kept.append(key))
    copies.wait()  # said once
    assert kept == [2]
    copies.run(numbers(4), lambda key, value: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        copies.wait()
    assert copies.has_failed


def test_waiting_for_the_device_counts_as_encoding():
    class Slow(LateStreams):
        def mark(self):
            return LateEvent([lambda: threading.Event().wait(0.05)], computing_s=3.0)

    streams, course = Slow(), StageTimes()
    copies = Copies(streams, course)
    copies.run(numbers(1), lambda key, value: None, streams.mark())
    copies.wait()
    spent = course.spent
    assert spent.seconds[ENCODING] > spent.seconds[COPYING_BACK]
    assert spent.device_s == 3.0


def test_buffers_are_used_again_once_their_copy_has_ended():
    buffers, waited = Buffers(), []
    first, second = (buffers.take(4, (3,), torch.uint8) for _ in range(2))
    assert first.data_ptr() != second.data_ptr()
    for buffer in (first, second):
        buffers.give_back(buffer, LateEvent([lambda buffer=buffer: waited.append(buffer)]))
    assert not waited
    for shape, dtype in (((2,), torch.uint8), ((3,), torch.int16)):
        other = buffers.take(4, shape, dtype)
        assert (tuple(other.shape), other.dtype) == ((4, *shape), dtype)
    assert buffers.take(2, (3,), torch.uint8) is first
    assert len(waited) == 1
    assert len(buffers.take(5, (3,), torch.uint8)) == 5, "the other has fewer rows"


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_the_same_bytes(dtype, forty, tmp_path, monkeypatch):
    options = {"batch_size": 7, "shard_rows": 32, "views": 2, "statistics": ("cls_self",), "dtype": dtype}
    extract(tiny_encoder(), forty, tmp_path / "once", **options)
    streams, encoder = LateStreams(), tiny_encoder()
    monkeypatch.setattr("extract.loop.streams_of", lambda device: streams)
    extract(encoder, forty, tmp_path / "behind", **options)
    assert files(tmp_path / "once") == files(tmp_path / "behind")
    for *_, event in streams.copied_in:
        event.synchronize()  # compares those that were never waited for
    assert streams.recorded == 2, "of both views"
    n_batches = 5 + 2  # of 32 and of 8 images
    assert len(streams.copied_in) == 2 * n_batches
    pixels = streams.allocated.count((7, 3, 32, 32))
    assert 4 <= pixels <= 2 * 3, "of two views: what is encoded, what is decoded, and what is begun meanwhile"
    assert len(streams.allocated) - pixels == 1, "of all features of a view"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_on_a_gpu(forty, tmp_path):
    options = {"batch_size": 7, "dtype": "float32", "views": 2}
    on_cpu = extract(tiny_encoder(), forty, tmp_path / "here", **options)
    encoder = tiny_encoder()
    encoder.model.to("cuda")
    on_gpu = extract(encoder, forty, tmp_path / "there", **options)
    for name in on_cpu.arrays:
        if not name.startswith("images/"):
            ours, theirs = (torch.from_numpy(store.array(name).all()) for store in (on_cpu, on_gpu))
            torch.testing.assert_close(theirs, ours, rtol=1e-4, atol=1e-4)


def test_a_unit_is_handed_on_while_the_next_is_computed(forty, monkeypatch):
    """Beside a GPU, which so need not wait for the last copies; and before an error of the next unit."""
    encoder, done = tiny_encoder(), []
    request = Request.resolve(encoder, forty, shard_rows=32, statistics=())
    layouts = request.layouts()
    units = [Unit(0, range(32), ["patch/block1/view0"]), Unit(1, range(32, 40), ["patch/block1/view0"])]
    forward = Request.encode

    def encode(self, *arguments):
        done.append("encoded")
        if done.count("encoded") == fails_at:
            raise ValueError("no more")
        return forward(self, *arguments)

    monkeypatch.setattr(Request, "encode", encode)
    expected = {
        (None, 0): ["encoded", 0, "encoded", 1],
        (LateStreams(), 0): ["encoded", "encoded", 0, 1],
        (LateStreams(), 2): ["encoded", "encoded", 0],
    }
    for (streams, fails_at), order in expected.items():
        monkeypatch.setattr("extract.loop.streams_of", lambda device, streams=streams: streams)
        done.clear()
        with ThreadPoolExecutor(1) as decoders, pytest.raises(ValueError, match="no more") if fails_at else nullcontext():
            for unit, arrays, _ in Units(Passes(request, 32, decoders), layouts).compute(units):
                done.append(unit.number)
                assert arrays["patch/block1/view0"].any(axis=(1, 2)).all()
        assert done == order


@pytest.fixture
def cuda(monkeypatch):
    """Notes what is called of torch.cuda, and in which order."""
    cuda = MagicMock()
    cuda.Stream.side_effect = [cuda.inwards, cuda.outwards]
    for name in ("Stream", "Event", "stream", "current_stream"):
        monkeypatch.setattr(torch.cuda, name, getattr(cuda, name))
    return cuda


def on(stream, *calls):
    return [call.stream(stream), call.stream().__enter__(), *calls, call.stream().__exit__(None, None, None)]


def end_of(stream, timed):
    """A thread that spins instead of sleeping takes a core from decoding."""
    return [call.Event(enable_timing=timed, blocking=True), call.Event().record(stream)]


def test_copies_in(cuda):
    streams, values = Streams(torch.device("cpu")), MagicMock(torch.Tensor)
    cuda.reset_mock()
    cuda.attach_mock(values.to, "to")
    placed, copied = streams.copy_in(values)
    computing = cuda.current_stream()
    expected = [call.current_stream(torch.device("cpu")), *on(cuda.inwards, call.to(torch.device("cpu"), non_blocking=True))]
    expected += [*end_of(cuda.inwards, False), call.current_stream().wait_event(copied), call.to().record_stream(computing)]
    assert (placed, copied, cuda.mock_calls[:-1]) == (values.to(), cuda.Event(), expected)


def test_copies_out(cuda):
    streams, buffer = Streams(torch.device("cpu")), torch.zeros(3)
    computing = cuda.current_stream()
    cuda.reset_mock()
    computed = streams.mark()
    with streams.behind(computed):
        streams.copy_out(torch.ones(3), buffer)
        streams.copied_out()
    expected = [call.current_stream(torch.device("cpu")), *end_of(computing, True)]
    assert cuda.mock_calls == expected + on(cuda.outwards, call.outwards.wait_event(computed), *end_of(cuda.outwards, False))
    assert buffer.all()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_copies_there_and_back():
    streams = Streams(torch.device("cuda"))
    pixels, buffer = streams.allocate((64, 3, 32), torch.uint8), streams.allocate((64, 3, 32), torch.uint8)
    assert pixels.is_pinned()
    for value in range(5):
        pixels.fill_(value)
        placed, copied = streams.copy_in(pixels)
        changed = placed + 1
        computed = streams.mark()
        copied.synchronize()
        with streams.behind(computed):
            streams.copy_out(changed, buffer)
            landed = streams.copied_out()
        landed.synchronize()
        assert (buffer == value + 1).all()
