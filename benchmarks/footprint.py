"""What a command takes: seconds, CPU seconds and memory of all its processes."""

import json
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks.timing import ROOT

INTERVAL = 0.2  # seconds between two looks at the memory


@dataclass(frozen=True)
class Footprint:
    """What a command took.

    Attributes:
        seconds: from its start to its end, imports included.
        cpu_s: user and system time of it and of all processes that it started and waited for.
        peak_nbytes: the most memory (resident, pages that processes share counted once) that they had together when looked at,
            every 0.2 s.
        printed: the JSON object in its last line; empty if there is none.
    """

    seconds: float
    cpu_s: float
    peak_nbytes: int
    printed: dict[str, Any]


def footprint(command: Sequence[str], environment: Mapping[str, str] | None = None) -> Footprint:
    """Run a command in the repository's root.

    Args:
        environment: variables beside those of this process.

    Raises:
        RuntimeError: it failed; the end of what it said.
    """
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        began = time.perf_counter()
        process = subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=err, env={**os.environ, **(environment or {})})
        with _Watch(process.pid) as watch:
            _, status, usage = os.wait4(process.pid, 0)
            seconds = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        err.seek(0)
        said = out.read()
        if process.returncode:
            raise RuntimeError(f"{' '.join(command)} failed:\n{(err.read() or said)[-2000:]}")
    return Footprint(seconds, usage.ru_utime + usage.ru_stime, watch.peak_nbytes, _last_object(said))


def _last_object(said: str) -> dict[str, Any]:
    try:
        printed = json.loads((said.splitlines() or [""])[-1])
    except ValueError:
        return {}
    return printed if isinstance(printed, dict) else {}


class _Watch:
    """Looks at the memory of a process and of its descendants, in a thread."""

    def __init__(self, pid: int):
        self.peak_nbytes = 0
        self._root, self._ended = psutil.Process(pid), threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "_Watch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while True:
            self.peak_nbytes = max(self.peak_nbytes, memory_nbytes(self._root))
            if self._ended.wait(INTERVAL):
                return


def memory_nbytes(root: psutil.Process) -> int:
    """Memory of a process and of its descendants, proportional set sizes; 0 once it has ended."""
    total = 0
    try:
        for process in (root, *root.children(recursive=True)):
            try:
                total += process.memory_full_info().pss
            except psutil.NoSuchProcess:  # a worker that has just ended
                continue
    except psutil.NoSuchProcess:
        return total
    return total


def folder_nbytes(folder: Path) -> int:
    """Bytes of all files below a folder."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
