"""Claims on units of a feature set in an object store, which has no locks: files that their owners keep renewing."""

import json
import os
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from threading import Event, Lock, Thread

from store.errors import StoreError
from store.format.unfinished import CLAIMS
from store.places.object_store import ObjectStore

SECONDS = 60.0  # after which a claim that was not renewed is free
RENEWALS = 4  # in that time


class Leases:
    """Claims that this process holds, and those of others as far as it has seen them.

    They only save work: two owners of a unit write the same bytes, and the second to finish finds the first's. So a process
    that was stopped for longer than a lease, and goes on, does no harm.

    A claim is the file UNIT-GENERATION, created only where there is none. It ends when its owner removes it, or when it was
    not written again for `SECONDS` by this process's clock since this process first saw it: no two clocks are compared. Who
    takes it over creates the next generation, which one process alone can.
    """

    def __init__(self, place: ObjectStore):
        self._place, self._seconds = place, SECONDS
        self._held: dict[int, str] = {}
        self._latest: dict[int, int] = {}  # generation of each unit that is claimed
        self._seen: dict[int, tuple[int, datetime | None, float]] = {}  # generation, when it was written, when first seen
        self._lock, self._ended = Lock(), Event()
        self._renewing: Thread | None = None
        self._content = json.dumps({"host": socket.gethostname(), "pid": os.getpid()}).encode()  # for people

    def see(self, times: Mapping[str, datetime | None]) -> None:
        """Take note of the claims in a listing, in which each has the time when it was last written."""
        latest: dict[int, tuple[int, datetime | None]] = {}
        for name, written in times.items():
            unit, _, generation = name.removeprefix(f"{CLAIMS}/").partition("-")
            if name.startswith(f"{CLAIMS}/") and unit.isdecimal() and generation.isdecimal():
                latest[int(unit)] = max(latest.get(int(unit), (-1, None)), (int(generation), written), key=lambda pair: pair[0])
        self._latest = {unit: generation for unit, (generation, _) in latest.items()}
        self._seen = {
            unit: (*claim, self._seen[unit][2] if self._seen.get(unit, ())[:2] == claim else time.monotonic())
            for unit, claim in latest.items()
        }

    def is_free(self, unit: int) -> bool:
        """Whether nobody has a unit, as far as was seen."""
        if unit in self._held:
            return False
        return unit not in self._seen or time.monotonic() - self._seen[unit][2] > self._seconds

    def take(self, unit: int) -> bool:
        """Claim a unit; false if another has it."""
        if not self.is_free(unit):
            return False
        name = f"{CLAIMS}/{unit}-{self._latest.get(unit, -1) + 1}"
        if not self._place.create(name, [self._content], len(self._content)):
            return False
        with self._lock:
            self._held[unit] = name
            if self._renewing is None:
                self._renewing = Thread(target=self._renew, name="beyondcls-leases", daemon=True)
                self._renewing.start()
        return True

    def forget(self, unit: int) -> None:
        """Let go of a unit that is written: nobody looks at its claim any more."""
        with self._lock:
            del self._held[unit]

    def close(self) -> None:
        """Give up all units that are not written; a claim that cannot be removed ends by itself."""
        self._ended.set()
        if self._renewing is not None:
            self._renewing.join()
        with suppress(StoreError):
            self._place.remove(list(self._held.values()))
        self._held.clear()

    def _renew(self) -> None:
        while not self._ended.wait(self._seconds / RENEWALS):
            for unit in list(self._held):
                with self._lock, suppress(StoreError):  # it is tried again; the claim may end meanwhile
                    if unit in self._held:
                        self._place.put(self._held[unit], [self._content], len(self._content))
