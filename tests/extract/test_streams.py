"""The order in which CUDA's streams are used, as far as shows without a GPU; on one, tests/extract/test_copies.py runs them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from extract.copies import Streams, streams_of


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is called of torch.cuda."""
    calls: list[str] = []
    names = iter(["in", "out"])

    class Stream:
        def __init__(self, device: object = None, name: str | None = None):
            self.name = name or next(names)

        def wait_event(self, event: "Event") -> None:
            calls.append(f"{self.name} waits for {event.name}")

    class Event:
        def __init__(self, enable_timing: bool = False, blocking: bool = False):
            assert blocking, "a thread that spins takes a core from decoding"
            self.name, self.timed = "", enable_timing

        def record(self, stream: Stream) -> None:
            self.name = f"end of {stream.name}"
            calls.append(f"{'timed ' if self.timed else ''}{self.name}")

        def elapsed_time(self, end: "Event") -> float:
            assert self.timed
            assert end.timed
            return 1500.0

    computing = Stream(name="computing")

    @contextmanager
    def stream(given: Stream) -> Iterator[None]:
        calls.append(f"on {given.name}:")
        yield
        calls.append(f"off {given.name}")

    for name, replacement in {"Stream": Stream, "Event": Event, "stream": stream}.items():
        monkeypatch.setattr(torch.cuda, name, replacement)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: computing)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda self, given: calls.append(f"memory is used by {given.name}"))
    to = torch.Tensor.to

    def logged(self: torch.Tensor, *given: Any, **named: Any) -> torch.Tensor:
        calls.append("copied" + (" without a wait" if named.get("non_blocking") else ""))
        return to(self, *given, **named)

    monkeypatch.setattr(torch.Tensor, "to", logged)
    return calls


def test_copies_in(log: list[str]) -> None:
    pixels = torch.arange(6, dtype=torch.uint8)
    placed, _ = Streams(torch.device("cpu")).copy_in(pixels)
    assert torch.equal(placed, pixels)
    copying = ["on in:", "copied without a wait", "off in", "end of in"]
    assert log == [*copying, "computing waits for end of in", "memory is used by computing"]


def test_copies_out(log: list[str]) -> None:
    streams, buffer = Streams(torch.device("cpu")), torch.zeros(3)
    began, computed = streams.mark(), streams.mark()
    with streams.behind(computed):
        streams.copy_out(torch.ones(3), buffer)
        streams.copied_out()
    marks = ["timed end of computing"] * 2
    assert log == [*marks, "on out:", "out waits for end of computing", "end of out", "off out"]
    assert streams.seconds(began, computed) == 1.5


def test_a_cpu_has_none() -> None:
    assert streams_of(torch.device("cpu")) is None


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_copies_there_and_back() -> None:
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
