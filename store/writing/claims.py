"""Claims on units of a feature set: files that their owners keep renewing. They save work, and may be wrong without harm."""

import json
import os
import random
import re
import shutil
import socket
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any

from store.errors import StoreError
from store.format.unfinished import CLAIMS
from store.places import LocalFolder, SharedPlace

SECONDS = 60.0  # after which a claim that was not renewed is free
RENEWALS = 4  # in that time
RECENT_S = 600.0  # a claim that was renewed since then, by another machine's clock, may still be held
ALONE = ".claim"  # ends the name of a folder next to what one process at a time works on
LOOK_S = 0.5
POLL = 1.0  # seconds between looks at what others do, at first
CLAIM = re.compile(rf"{re.escape(CLAIMS)}/(\d+)-(\d+)", re.ASCII)


class BusyError(StoreError):
    """Another process is at work."""


@dataclass
class _ClaimOfAnother:
    """A claim of another."""

    generation: int
    written: datetime | None  # last
    since: float  # when this process has seen it so
    content: bytes | None = None  # None: not read yet


class Claims:
    """Claims that this process holds, and those of others as far as it has seen them.

    Two owners of a unit compute the same, and the second to finish adopts what the first has written. So a process that was
    stopped for a while, and goes on, does no harm.

    A claim is the file UNIT-GENERATION, created only where there is none. It ends when its owner removes it, with its process
    where that can be seen from here, or when it was not renewed for `SECONDS` by this process's clock since this process first
    saw it: no two clocks are compared. Who takes it over creates the next generation, which one process alone can.
    """

    def __init__(self, place: SharedPlace):
        self._place, self._seconds = place, SECONDS
        self.held: dict[int, str] = {}  # the file of each unit that this process has, as far as it knows
        self._past: list[str] = []  # of units that are written
        self.seen: dict[int, _ClaimOfAnother] = {}  # of others
        self._lock, self._ended = Lock(), Event()
        self._renewing: Thread | None = None
        self._content = json.dumps({**_this_process(), "id": uuid.uuid4().hex}).encode()

    def see(self, times: Mapping[str, datetime | None]) -> None:
        """Take note of the claims in a listing, in which each has the time when it was last written."""
        latest: dict[int, int] = {}
        for name in times:
            if claim := CLAIM.fullmatch(name):
                unit, generation = int(claim[1]), int(claim[2])
                latest[unit] = max(latest.get(unit, 0), generation)
        self.seen = {unit: seen for unit, seen in self.seen.items() if unit in latest}
        for unit, generation in latest.items():
            self._note_claim(unit, generation, times[_claim_name(unit, generation)])

    def look(self, unit: int) -> None:
        """Take note of the claim of one unit, if one is known: for few units that is less work for a service than a listing."""
        if unit in self.seen:
            generation = self.seen[unit].generation
            if (written := self._place.time_now(_claim_name(unit, generation))) is None:
                del self.seen[unit]  # its owner has removed it
            else:
                self._note_claim(unit, generation, written)

    def _note_claim(self, unit: int, generation: int, written: datetime | None) -> None:
        seen = self.seen.get(unit)
        if seen is None or (seen.generation, seen.written) != (generation, written):
            content = seen.content if seen is not None and seen.generation == generation else None
            self.seen[unit] = _ClaimOfAnother(generation, written, time.monotonic(), content)

    def is_free(self, unit: int) -> bool:
        """Whether nobody has a unit, as far as was seen."""
        if unit in self.held:
            return False
        if (seen := self.seen.get(unit)) is None or time.monotonic() - seen.since > self._seconds:
            return True
        if seen.content is None:
            seen.content = self._place.content_now(_claim_name(unit, seen.generation))
        return has_ended(seen.content)

    def take(self, unit: int) -> bool:
        """Claim a unit; false if another has it."""
        if not self.is_free(unit):
            return False
        generation = self.seen[unit].generation + 1 if unit in self.seen else 0
        name, content = _claim_name(unit, generation), self._content
        # It may have been written by a request whose answer was lost, and that was repeated.
        if not self._place.create(name, [content], len(content)) and self._place.content_now(name) != content:
            self._note_claim(unit, generation, None)
            return False
        with self._lock:
            self.held[unit] = name
            if self._renewing is None:
                self._renewing = Thread(target=self._renew, name="beyondcls-claims", daemon=True)
                self._renewing.start()
        return True

    def forget(self, unit: int) -> None:
        """Let go of a unit that is written: nobody looks at its claim any more."""
        with self._lock:
            if unit in self.held:
                self._past.append(self.held.pop(unit))

    def close(self, is_over: bool = False) -> None:
        """Give up all units; a claim that cannot be removed ends by itself.

        Args:
            is_over: whoever has published the set removes all claims.
        """
        self._ended.set()
        if self._renewing is not None:
            self._renewing.join()
        if not is_over:
            with suppress(StoreError):
                self._place.remove([*self.held.values(), *self._past])
        self.held.clear()

    def _renew(self) -> None:
        while not self._ended.wait(self._seconds / RENEWALS):
            for unit in list(self.held):
                with self._lock, suppress(StoreError):  # it is tried again; the claim may end meanwhile
                    if unit in self.held:
                        self._place.touch(self.held[unit], self._content)


def own_first(units: Sequence[int], task: int, n_tasks: int) -> list[int]:
    """Units in the order in which one of several tasks tries them: its share, then others' in an order of its own.

    Else tasks that are done with their shares would all try the same unit.
    """
    own = [unit for unit in units if unit % n_tasks == task]
    others = [unit for unit in units if unit % n_tasks != task]
    random.Random(task).shuffle(others)
    return own + others


def naps() -> Iterator[float]:
    """Seconds to wait between looks, ever more."""
    longest = POLL
    while True:
        yield random.uniform(longest / 2, longest)
        longest = min(1.5 * longest, SECONDS / 4)


def is_of_here(content: bytes | None) -> bool:
    """Whether a claim, by the content of its file, which may be anything, is of a process that can or could be seen here."""
    owner, here = _owner_of(content), _this_process()
    return owner is not None and all(owner.get(name) == here[name] for name in ("host", "boot", "processes"))


def has_ended(content: bytes | None) -> bool:
    """Whether the owner of a claim was a process here, and is none."""
    owner = _owner_of(content)
    return owner is not None and is_of_here(content) and owner.get("began") != _start_ticks(owner["pid"])


def holder(place: SharedPlace) -> str | None:
    """Who is writing in a place, as text; None if nobody does, as far as can be seen. Nothing is written.

    A process of this machine is looked for; one of another machine is taken to be at work if it has renewed its claim lately.
    """
    for name, written in sorted(place.times(CLAIMS).items()):
        content = place.content_now(name)
        if content is None or has_ended(content):
            continue
        owner = _owner_of(content)
        is_recent = written is None or abs((datetime.now(UTC) - written).total_seconds()) < RECENT_S
        if is_recent or is_of_here(content):
            return "another process" if owner is None else f"process {owner['pid']} on {owner['host'][:100]!r}"
    return None


@contextmanager
def alone(path: Path, resource: str) -> Iterator[None]:
    """Let one process at a time do what several would do in each other's way. It may be two, and must bear that.

    Args:
        path: what it is done to; the claim is next to it.
        resource: it, for messages.

    Raises:
        BusyError: another process is at it.
    """
    place = LocalFolder(path.with_name(f"{path.name}{ALONE}"))
    claims, began = Claims(place), time.monotonic()
    try:
        while True:
            try:
                claims.see(place.times(CLAIMS))
                if claims.take(0):
                    break
            except FileNotFoundError:  # who had it has just removed the folder
                continue
            seen = claims.seen.get(0)
            if seen is not None and (is_of_here(seen.content) or seen.since > began + LOOK_S):  # at work, or it was renewed
                raise BusyError(
                    f"{resource} is being written by {holder(place) or 'another process'}; wait until it has finished, or stop "
                    "it and give this command again"
                )
            time.sleep(LOOK_S)
        yield
    finally:
        is_ours = 0 in claims.held
        claims.close()
        if is_ours:
            shutil.rmtree(place.folder, ignore_errors=True)


def _owner_of(content: bytes | None) -> dict[str, Any] | None:
    try:
        owner = json.loads(content or b"")
        return {**owner, "pid": int(owner["pid"]), "host": str(owner["host"])}
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None


@cache
def _boot_identity() -> dict[str, str]:
    """What tells this machine, its start and its process numbers from others of the same name."""
    boot, processes = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/pid")
    with suppress(OSError):
        return {"boot": boot.read_text().strip(), "processes": os.readlink(processes)}
    return {"boot": "", "processes": uuid.uuid4().hex}


def _this_process() -> dict[str, Any]:
    return {"host": socket.gethostname(), "pid": os.getpid(), **_boot_identity(), "began": _start_ticks(os.getpid())}


def _start_ticks(pid: int) -> str | None:
    """When a process began, in ticks since the machine's start; None if there is none, or it has ended."""
    with suppress(OSError, IndexError, ValueError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if fields[0] == "Z" else fields[19]
    return None


def _claim_name(unit: int, generation: int) -> str:
    return f"{CLAIMS}/{unit}-{generation}"
