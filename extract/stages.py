"""Which stage of an extraction binds: where the thread that drives the encoder spends its time.

That thread takes decoded images, has them copied in and encoded, and hands features on to be copied back and written. What it
waits for, or does itself, longest is what more speed would help.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock

DECODING, COPYING_IN, ENCODING, COPYING_BACK, WRITING = "decoding", "copying in", "encoding", "copying back", "writing"
ELSE = "bookkeeping"  # of units that are claimed, and of what is known without decoding an image: labels, also those of patches
STAGES = (DECODING, COPYING_IN, ENCODING, COPYING_BACK, WRITING, ELSE)
TELLING_S = 30.0  # from which on the first batch, for which all stages wait, hardly counts


@dataclass(frozen=True)
class Spent:
    """Where the time of an extraction went: seconds by stage, and those that a GPU computed; None where the thread does."""

    seconds: Mapping[str, float]
    device_s: float | None = None

    @property
    def total_s(self) -> float:
        return sum(self.seconds.values())

    @property
    def binding(self) -> str:
        return max(STAGES, key=lambda stage: self.seconds[stage])

    @property
    def is_telling(self) -> bool:
        return self.total_s >= TELLING_S

    @property
    def encoder_idle(self) -> float:
        """The share of the time, 0…1, in which nothing was encoded."""
        busy = self.seconds[ENCODING] if self.device_s is None else self.device_s
        return max(0.0, 1 - busy / self.total_s) if self.total_s else 0.0

    def __str__(self) -> str:
        return f"{self.binding} binds: encoder idle {100 * self.encoder_idle:.0f} %"


class StageTimes:
    """What a thread does with its time, stage by stage; `now` gives the time in seconds."""

    def __init__(self, now: Callable[[], float] = time.perf_counter):
        self._now, self._lock = now, Lock()
        self._seconds = dict.fromkeys(STAGES, 0.0)
        self._stage: str | None = None
        self._since = now()
        self._device_s: float | None = None

    @contextmanager
    def doing(self, stage: str) -> Iterator[None]:
        """A context whose time counts for a stage, but for contexts within it."""
        before = self._enter(stage)
        try:
            yield
        finally:
            self._enter(before)

    @contextmanager
    def waiting_for(self, other: "StageTimes", stage: str) -> Iterator[None]:
        """A context in which this thread waits for another: what that one does meanwhile counts, else `stage`."""
        began, before = self._now(), other.spent.seconds
        try:
            with self.doing(ELSE):
                yield
        finally:
            passed = {name: seconds - before[name] for name, seconds in other.spent.seconds.items() if name != ELSE}
            unexplained = self._now() - began - sum(passed.values())
            with self._lock:
                for name, seconds in (*passed.items(), (stage, unexplained)):
                    self._seconds[name] += seconds
                    self._seconds[ELSE] -= seconds

    def computed(self, seconds: float) -> None:
        with self._lock:
            self._device_s = (self._device_s or 0.0) + seconds

    @property
    def spent(self) -> Spent:
        with self._lock:
            self._count()
            return Spent(dict(self._seconds), self._device_s)

    def _enter(self, stage: str | None) -> str | None:
        with self._lock:
            self._count()
            before, self._stage = self._stage, stage
        return before

    def _count(self) -> None:
        now = self._now()
        if self._stage is not None:
            self._seconds[self._stage] += now - self._since
        self._since = now
