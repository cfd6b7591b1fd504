"""The clock, by which object stores tell whether a request is fresh."""

import time

from pipelines.doctor.finding import Finding
from pipelines.doctor.machine import Machine


def check(machine: Machine) -> Finding | None:
    """A machine that lost its time is in 1970."""
    year = time.gmtime().tm_year
    if year < 2024:
        return Finding("clock", "problem", f"it is {year} here, expected 2024 or later", "set it: timedatectl set-ntp true")
    return Finding("clock", "ok", f"it is {year}")
