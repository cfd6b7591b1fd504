"""The stage that binds is named, whichever it is."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from extract.datasets import ImageSet
from extract.encoders import Encoder
from extract.loop import Passes
from extract.requests import Request
from extract.run import create
from extract.stages import COPYING_BACK, COPYING_IN, DECODING, ELSE, ENCODING, STAGES, WRITING, Spent, StageTimes
from extract.writing import Settings
from store import FeatureWriter
from tests.extract.late import LateStreams
from tests.extract.tiny import tiny_encoder

Patch = pytest.MonkeyPatch
SLOWED_S = 0.06  # a batch; several times what all the rest needs


class Clock:
    """Time that passes when it is told to."""

    s = 0.0

    def __call__(self) -> float:
        return self.s


class TestCourse:
    def test_what_is_within_counts_for_itself(self):
        clock = Clock()
        course = StageTimes(clock)
        clock.s = 5  # before anything is done
        with course.doing(ELSE):
            clock.s += 1
            with course.doing(ENCODING):
                clock.s += 2
                with course.doing(DECODING):
                    clock.s += 4
                clock.s += 8
            clock.s += 16
        clock.s += 32
        assert course.spent.seconds == {**dict.fromkeys(STAGES, 0), ELSE: 17, ENCODING: 10, DECODING: 4}

    def test_waiting_counts_for_what_the_other_does(self):
        clock = Clock()
        course, other = StageTimes(clock), StageTimes(clock)
        with other.doing(ENCODING):
            clock.s += 1
            with course.doing(COPYING_IN), course.waiting_for(other, COPYING_BACK):
                clock.s += 2
                with other.doing(WRITING):
                    clock.s += 4
        with course.doing(ELSE), course.waiting_for(other, COPYING_BACK):
            clock.s += 8  # it does nothing that it knows of
        assert course.spent.seconds == {**dict.fromkeys(STAGES, 0), ELSE: 0, ENCODING: 2, WRITING: 4, COPYING_BACK: 8}

    def test_up_to_now(self):
        clock = Clock()
        course = StageTimes(clock)
        with course.doing(WRITING):
            clock.s = 3
            assert course.spent.seconds[WRITING] == 3
            clock.s = 4
        assert course.spent.seconds[WRITING] == 4


@pytest.mark.parametrize(
    ("bookkeeping_s", "device_s", "says"),
    [
        (1.0, None, "decoding binds: encoder idle 62 %"),
        (101.0, None, "bookkeeping binds: encoder idle 81 %"),
        (1.0, 75.0, "decoding binds: encoder idle 25 %"),  # a GPU is busy while the thread waits for something else
    ],
)
def test_in_words(bookkeeping_s, device_s, says):
    seconds = {**dict.fromkeys(STAGES, 0.0), DECODING: 61.0, ENCODING: 38.0, ELSE: bookkeeping_s}
    assert str(Spent(seconds, device_s)) == says


def test_of_nothing():
    spent = StageTimes().spent
    assert (spent.encoder_idle, spent.is_telling) == (0, False)


def slow(owner: Any, name: str, every: int = 1) -> Callable[[Patch], None]:
    """Have a method take SLOWED_S on every nth call."""
    before, calls = getattr(owner, name), iter(range(1, 10**6))

    def slowed(*given: Any, **named: Any) -> Any:
        if next(calls) % every == 0:
            time.sleep(SLOWED_S)
        return before(*given, **named)

    return lambda patch: patch.setattr(owner, name, slowed)


SLOW = {
    DECODING: slow(Passes, "decode", 8),
    ENCODING: slow(Encoder, "__call__"),
    COPYING_IN: slow(Passes, "_placed"),
    WRITING: slow(FeatureWriter, "write_unit"),
}


def spent_by(images: ImageSet, out: Path) -> Spent:
    told = []
    request = Request.resolve(tiny_encoder(), images, shard_rows=32, statistics=(), maps=False)
    create(request, out, Settings(batch_size=8, workers=1, spent=told.append))
    (spent,) = told
    return spent


@pytest.mark.parametrize("stage", SLOW)
@pytest.mark.parametrize("device", ["cpu", "late"])
def test_a_slow_stage_is_named(stage, device, forty, tmp_path, monkeypatch):
    if device == "late":
        streams = LateStreams()
        monkeypatch.setattr("extract.loop.streams_of", lambda _: streams)
    if stage == WRITING:  # of two units, one while nothing else is to be done
        monkeypatch.setattr("tests.extract.test_stages.SLOWED_S", 0.3)
    SLOW[stage](monkeypatch)
    spent = spent_by(forty, tmp_path / "set")
    assert spent.binding == stage
    assert str(spent).startswith(f"{stage} binds: encoder idle ")
    assert spent.total_s >= max(spent.seconds.values())


def test_slow_copying_back_is_named(forty, tmp_path, monkeypatch):
    from extract.layouts import as_array as before

    def slowed(*given):
        time.sleep(SLOWED_S)
        return before(*given)

    monkeypatch.setattr("extract.loop.as_array", slowed)
    assert spent_by(forty, tmp_path / "set").binding == COPYING_BACK
    monkeypatch.setattr("extract.loop.streams_of", lambda _: LateStreams())
    assert spent_by(forty, tmp_path / "late").binding == COPYING_BACK


def test_nothing_to_compute(forty, tmp_path):
    spent_by(forty, tmp_path / "set")
    told = []
    request = Request.resolve(tiny_encoder(), forty, shard_rows=32, statistics=(), maps=False)
    create(request, tmp_path / "set", Settings(spent=told.append))
    assert not told
