"""The stage that binds is named, whichever it is."""

import itertools
import time
from types import SimpleNamespace

import pytest

from extract import loop
from extract.encoders import Encoder
from extract.loop import Passes
from extract.requests import Request
from extract.run import create
from extract.stages import COPYING_BACK, COPYING_IN, DECODING, ELSE, ENCODING, STAGES, WRITING, Spent, StageTimes
from extract.writing import Settings
from store import FeatureWriter
from tests.extract.late import LateStreams
from tests.extract.tiny import tiny_encoder


def test_what_is_within_counts_for_itself_up_to_now():
    clock = SimpleNamespace(s=0)
    course = StageTimes(lambda: clock.s)
    clock.s = 5  # before anything is done
    with course.doing(ELSE):
        clock.s += 1
        with course.doing(ENCODING):
            clock.s += 2
            with course.doing(DECODING):
                clock.s += 4
                assert course.spent.seconds[DECODING] == 4
            clock.s += 8
        clock.s += 16
    clock.s += 32
    assert course.spent.seconds == {**dict.fromkeys(STAGES, 0), ELSE: 17, ENCODING: 10, DECODING: 4}


def test_waiting_counts_for_what_the_other_does():
    clock = SimpleNamespace(s=0)
    course, other = StageTimes(lambda: clock.s), StageTimes(lambda: clock.s)
    with other.doing(ENCODING):
        clock.s += 1
        with course.doing(COPYING_IN), course.waiting_for(other, COPYING_BACK):
            clock.s += 2
            with other.doing(WRITING):
                clock.s += 4
    with course.doing(ELSE), course.waiting_for(other, COPYING_BACK):
        clock.s += 8  # it does nothing that it knows of
    assert course.spent.seconds == {**dict.fromkeys(STAGES, 0), ELSE: 0, ENCODING: 2, WRITING: 4, COPYING_BACK: 8}


@pytest.mark.parametrize(
    ("bookkeeping_s", "device_s", "says"),
    [
        (1.0, None, "decoding binds: encoder idle 62 %"),
        (101.0, None, "bookkeeping binds: encoder idle 81 %"),
        (1.0, 75.0, "decoding binds: encoder idle 25 %"),  # a GPU is busy while the thread waits for something else
    ],
)
def test_in_words(bookkeeping_s, device_s, says):
    spent = Spent({**dict.fromkeys(STAGES, 0.0), DECODING: 61.0, ENCODING: 38.0, ELSE: bookkeeping_s}, device_s)
    nothing = StageTimes().spent
    assert (str(spent), spent.is_telling) == (says, True)
    assert (nothing.encoder_idle, nothing.is_telling) == (0, False)


SLOW = {  # what takes longer, on every nth of its calls
    DECODING: (Passes, "decode", 8),
    ENCODING: (Encoder, "__call__", 1),
    COPYING_IN: (Passes, "_placed", 1),
    COPYING_BACK: (loop, "as_array", 1),
    WRITING: (FeatureWriter, "write_unit", 1),
}


@pytest.mark.parametrize("stage", SLOW)
@pytest.mark.parametrize("device", ["cpu", "late"])
def test_a_slow_stage_is_named(stage, device, forty, tmp_path, monkeypatch):
    if device == "late":
        monkeypatch.setattr(loop, "streams_of", lambda _: LateStreams())
    owner, name, every = SLOW[stage]
    before, calls = getattr(owner, name), itertools.count(1)

    def slowed(*given, **named):
        if next(calls) % every == 0:
            time.sleep(0.3 if stage == WRITING else 0.06)  # of two units one is written while nothing else is to be done
        return before(*given, **named)

    request, reported = Request.resolve(tiny_encoder(), forty, shard_rows=32, statistics=(), maps=False), []
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, slowed)
        create(request, tmp_path / "set", Settings(batch_size=8, workers=1, spent=reported.append))
    (spent,) = reported
    assert spent.binding == stage
    assert str(spent).startswith(f"{stage} binds: encoder idle ")
    assert spent.total_s >= max(spent.seconds.values())
    create(request, tmp_path / "set", Settings(spent=reported.append))
    assert len(reported) == 1, "nothing was computed"
