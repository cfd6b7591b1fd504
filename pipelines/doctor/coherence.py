"""Whether two processes, on two machines, see the same locks and the same files in a folder that both have."""

import errno
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from pipelines.doctor.finding import Finding

LATE_S = 5.0  # files of another machine that are seen later are worth a note
LOST_S = 60.0  # caches of NFS expire within this time
HELD = ("locked", "leased")
ALONE = "let one machine at a time write a feature set, or extract to a file system on which locks hold between machines"


class Side(Protocol):
    """One of the two processes.

    Attributes:
        name: of its machine.
    """

    name: str

    def do(self, step: str) -> str:
        """Take a step of `Steps`; its outcome, in a word or two."""


class Steps:
    """What either side does, in a scratch folder and nowhere else; nothing can be asked for but the names of these methods.

    Args:
        folder: exists; both see it.
    """

    def __init__(self, folder: Path, name: str):
        from store.writing.lock import Lock

        self.name, self._folder = name, folder
        self._lock: Lock | None = None
        self._n_files = self._n_first = 0  # each is another file: a network may show removed ones for a while

    def do(self, step: str) -> str:
        known = {name: getattr(self, name) for name in STEPS}
        try:
            return known[step]()
        except OSError as error:
            return f"failed ({error.strerror})"

    def take(self) -> str:
        from store.errors import StoreError
        from store.writing.lock import BusyError, Lock

        try:
            self._lock = Lock(self._folder / "lock", "it")
        except BusyError:
            return "refused"
        except StoreError as error:
            return f"failed ({error})"
        return HELD[self._lock.is_leased]

    def release(self) -> str:
        if self._lock is not None:
            self._lock.release()
        return "released"

    def name_file(self) -> str:
        """Write a file and name it, as shards and journals are."""
        from store.places.disk import write_file

        write_file(self._file(), [b"whole"])
        return "named"

    def miss_file(self) -> str:
        """Look once for the file that is named next: a network may remember for long that it was missing."""
        return "there" if (self._folder / f"file{self._n_files + 1}").exists() else "missing"

    def see_file(self) -> str:
        """Seconds until a file that the other side has named is there, whole."""
        file, began = self._file(), time.monotonic()
        while (waited := time.monotonic() - began) < LOST_S:
            try:
                if file.read_bytes() == b"whole":
                    return f"{waited:.1f}"
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.ESTALE):
                    raise
            time.sleep(0.02)
        return "never"

    def _file(self) -> Path:
        self._n_files += 1
        return self._folder / f"file{self._n_files}"

    def make_first(self) -> str:
        """Make a file that must not exist."""
        self._n_first += 1
        try:
            os.close(os.open(self._folder / f"first{self._n_first}", os.O_CREAT | os.O_EXCL, 0o666))
        except FileExistsError:
            return "exists"
        return "made"


STEPS = ("take", "release", "name_file", "miss_file", "see_file", "make_first")


def examine(one: Side, other: Side) -> Iterator[Finding]:
    """Findings about two sides that see the same folder; each step is taken both ways."""
    yield _locks(one, other)
    yield _files(one, other)
    yield _first(one, other)


def _locks(one: Side, other: Side) -> Finding:
    """One holds the lock, and the other must be refused until it is released."""
    for holder, second in ((one, other), (other, one)):
        held, refused = holder.do("take"), second.do("take")
        for side in (second, holder):
            side.do("release")
        for side, outcome in ((holder, held), (second, refused)):
            if outcome not in (*HELD, "refused"):
                return Finding("locks", "problem", f"{side.name} cannot lock: {outcome}", ALONE)
        if refused in HELD:
            return _both_held(holder, held, second, refused)
        after = second.do("take")
        second.do("release")
        if after not in HELD:
            observed = f"{holder.name} released a lock, and {second.name} still cannot take it ({after})"
            return Finding("locks", "problem", observed, ALONE)
    if held == "leased":
        observed = "no file locks: leases keep the others out, and the unit of a process that dies is free after a minute"
        return Finding("locks", "note", observed, "mount it with file locks (Lustre: -o flock), if it has them")
    return Finding("locks", "ok", "each was refused while the other held the lock, and got it after its release")


def _both_held(one: Side, how: str, other: Side, other_how: str) -> Finding:
    if how != other_how:
        observed = f"{one.name} has {how} a file that {other.name} has {other_how}: one has file locks, the other has none"
        return Finding("locks", "problem", observed, "mount the folder with the same options on both")
    observed = f"{one.name} and {other.name} held one lock at the same time: locks hold on each machine alone"
    mounting = "mount it so that locks reach the server (NFS: without nolock and local_lock; Lustre: -o flock)"
    return Finding("locks", "problem", observed, f"{mounting}; or {ALONE}")


def _files(one: Side, other: Side) -> Finding:
    """What one has written and named is there for the other, which has looked for it before; by the clock of this machine."""
    waited = []
    for writer, reader in ((one, other), (other, one)):
        reader.do("miss_file")
        began = time.monotonic()
        if (named := writer.do("name_file")) != "named":
            return Finding("new files", "problem", f"{writer.name} cannot write: {named}", ALONE)
        seen = reader.do("see_file")
        try:
            waited.append(max(float(seen), time.monotonic() - began))
        except ValueError:
            observed = f"{reader.name} does not see a file that {writer.name} has named {LOST_S:g} s ago ({seen})"
            return Finding("new files", "problem", observed, ALONE)
    if max(waited) > LATE_S:
        observed = (
            f"a new file is seen by the other after {max(waited):.1f} s: units may be computed twice, with the same result"
        )
        return Finding("new files", "note", observed, "on NFS, mount with lookupcache=positive or a smaller acdirmax")
    return Finding("new files", "ok", f"a new file is seen by the other, whole, within {max(max(waited), 0.1):.1f} s")


def _first(one: Side, other: Side) -> Finding:
    """When both create the same file, the second is told that it exists (O_EXCL)."""
    for first, second in ((one, other), (other, one)):
        outcomes = first.do("make_first"), second.do("make_first")
        if outcomes != ("made", "exists"):
            observed = f"O_EXCL: {first.name}: {outcomes[0]}; {second.name}, afterwards: {outcomes[1]}; expected made, exists"
            return Finding("exclusive files", "problem", observed, ALONE)
    return Finding("exclusive files", "ok", "when both create the same file, the second is told that it exists")
