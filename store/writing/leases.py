"""Claims on units of a feature set in an object store, which has no locks: files that their owners keep renewing."""

import json
import os
import re
import socket
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from threading import Event, Lock, Thread

from store.errors import StoreError
from store.format.unfinished import CLAIMS
from store.places.object_store import ObjectStore

SECONDS = 60.0  # after which a claim that was not renewed is free
RENEWALS = 4  # in that time
CLAIM = re.compile(rf"{re.escape(CLAIMS)}/(\d+)-(\d+)", re.ASCII)


@dataclass(frozen=True)
class _Seen:
    """A claim of another: its generation, when it was last written, and since when this process has seen it so."""

    generation: int
    written: datetime | None
    since: float


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
        self._seen: dict[int, _Seen] = {}
        self._lock, self._ended = Lock(), Event()
        self._renewing: Thread | None = None
        owner = {"host": socket.gethostname(), "pid": os.getpid(), "id": uuid.uuid4().hex}
        self._content = json.dumps(owner).encode()

    def see(self, times: Mapping[str, datetime | None]) -> None:
        """Take note of the claims in a listing, in which each has the time when it was last written."""
        latest: dict[int, int] = {}
        for name in times:
            if claim := CLAIM.fullmatch(name):
                unit, generation = int(claim[1]), int(claim[2])
                latest[unit] = max(latest.get(unit, 0), generation)
        self._seen = {unit: seen for unit, seen in self._seen.items() if unit in latest}
        for unit, generation in latest.items():
            self._note(unit, generation, times[_name(unit, generation)])

    def look(self, unit: int) -> None:
        """Take note of the claim of one unit, if one is known: for few units that is less work for a service than a listing."""
        if unit in self._seen:
            generation = self._seen[unit].generation
            if (written := self._place.time_now(_name(unit, generation))) is None:
                del self._seen[unit]  # its owner has removed it
            else:
                self._note(unit, generation, written)

    def _note(self, unit: int, generation: int, written: datetime | None) -> None:
        seen = self._seen.get(unit)
        if seen is None or (seen.generation, seen.written) != (generation, written):
            self._seen[unit] = _Seen(generation, written, time.monotonic())

    def is_free(self, unit: int) -> bool:
        """Whether nobody has a unit, as far as was seen."""
        if unit in self._held:
            return False
        return unit not in self._seen or time.monotonic() - self._seen[unit].since > self._seconds

    def take(self, unit: int) -> bool:
        """Claim a unit; false if another has it."""
        if not self.is_free(unit):
            return False
        generation = self._seen[unit].generation + 1 if unit in self._seen else 0
        name, content = _name(unit, generation), self._content
        # It may have been written by a request whose answer was lost, and that was repeated.
        if not self._place.create(name, [content], len(content)) and self._place.content_now(name) != content:
            self._note(unit, generation, None)
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


def _name(unit: int, generation: int) -> str:
    return f"{CLAIMS}/{unit}-{generation}"
