"""Processes that were killed."""

import time

import psutil


def ended(pid: int) -> bool:
    """Whether a process that was killed ends soon."""
    try:
        child = psutil.Process(pid)
        for _ in range(100):
            if child.status() == psutil.STATUS_ZOMBIE:
                return True
            time.sleep(0.1)
    except psutil.NoSuchProcess:
        return True
    return False
