"""Processes on a file system without locks, whose leases are short."""

import errno
import fcntl
import os
from typing import Any

import pytest

from store.writing import file_lease

BEAT_S, LEASE_S = 0.05, 0.5


def refuse(*_: object) -> Any:
    raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))


def without_locks(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(fcntl, "flock", refuse)
    patch.setattr(fcntl, "fcntl", refuse)
    patch.setattr(file_lease, "BEAT_S", BEAT_S)
    patch.setattr(file_lease, "LEASE_S", LEASE_S)
