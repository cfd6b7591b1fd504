"""The clock, by which object stores tell whether a request is fresh."""

import time
from collections.abc import Iterator

from pipelines.doctor.machine import Finding, Machine


def check(machine: Machine) -> Iterator[Finding]:
    """A machine that lost its time is in 1970."""
    year = time.gmtime().tm_year
    if year < 2024:
        yield Finding("clock", "problem", f"it is {year} here, expected 2024 or later", "set it: timedatectl set-ntp true")
    else:
        yield Finding("clock", "ok", f"it is {year}")
