"""Pixels reach the device one batch ahead of the encoder, and features leave it one behind; the order in which CUDA's streams
are used, as far as shows without a GPU.
"""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext

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


class TestBuffers:
    def test_are_used_again_once_their_copy_has_ended(self):
        buffers, waited = Buffers(), []
        first = buffers.take(4, (3,), torch.uint8)
        second = buffers.take(4, (3,), torch.uint8)
        assert first.data_ptr() != second.data_ptr()
        buffers.give_back(first, LateEvent([lambda: waited.append("first")]))
        buffers.give_back(second, LateEvent([lambda: waited.append("second")]))
        assert not waited
        assert buffers.take(2, (3,), torch.uint8) is first
        assert waited == ["first"]

    def test_of_another_shape_or_dtype_or_of_fewer_rows_are_not(self):
        buffers = Buffers()
        small = buffers.take(4, (3,), torch.uint8)
        buffers.give_back(small)
        taken = buffers.take(4, (2,), torch.uint8), buffers.take(4, (3,), torch.int16), buffers.take(5, (3,), torch.uint8)
        assert [(tuple(one.shape), one.dtype) for one in taken] == [
            ((4, 2), torch.uint8),
            ((4, 3), torch.int16),
            ((5, 3), torch.uint8),
        ]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float8_e4m3", "int8", "int4", "float32"])
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
def log(monkeypatch):
    """What is called of torch.cuda."""
    calls = []
    names = iter(["in", "out"])

    class Stream:
        def __init__(self, device=None, name=None):
            self.name = name or next(names)

        def wait_event(self, event):
            calls.append(f"{self.name} waits for {event.name}")

    class Event:
        def __init__(self, enable_timing=False, blocking=False):
            assert blocking, "a thread that spins takes a core from decoding"
            self.name, self.timed = "", enable_timing

        def record(self, stream):
            self.name = f"end of {stream.name}"
            calls.append(f"{'timed ' if self.timed else ''}{self.name}")

    computing = Stream(name="computing")

    @contextmanager
    def stream(given):
        calls.append(f"on {given.name}:")
        yield
        calls.append(f"off {given.name}")

    for name, replacement in {"Stream": Stream, "Event": Event, "stream": stream}.items():
        monkeypatch.setattr(torch.cuda, name, replacement)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: computing)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda self, given: calls.append(f"memory is used by {given.name}"))
    to = torch.Tensor.to

    def logged(self, *given, **named):
        calls.append("copied" + (" without a wait" if named.get("non_blocking") else ""))
        return to(self, *given, **named)

    monkeypatch.setattr(torch.Tensor, "to", logged)
    return calls


def test_copies_in(log):
    pixels = torch.arange(6, dtype=torch.uint8)
    placed, _ = Streams(torch.device("cpu")).copy_in(pixels)
    assert torch.equal(placed, pixels)
    copying = ["on in:", "copied without a wait", "off in", "end of in"]
    assert log == [*copying, "computing waits for end of in", "memory is used by computing"]


def test_copies_out(log):
    streams, buffer = Streams(torch.device("cpu")), torch.zeros(3)
    computed = streams.mark()
    with streams.behind(computed):
        streams.copy_out(torch.ones(3), buffer)
        streams.copied_out()
    assert log == ["timed end of computing", "on out:", "out waits for end of computing", "end of out", "off out"]


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
