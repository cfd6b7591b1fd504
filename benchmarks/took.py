"""What a part of a process takes."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psutil


@dataclass
class Took:
    """Seconds and CPU seconds of a part (an epoch), workers of DataLoaders included, and those of its heads alone."""

    seconds: float = 0.0
    cpu_s: float = 0.0
    heads_s: float = 0.0
    heads_cpu_s: float = 0.0

    @contextmanager
    def whole(self) -> Iterator[None]:
        began, cpu = time.perf_counter(), cpu_of_tree()
        yield
        self.seconds, self.cpu_s = time.perf_counter() - began, cpu_of_tree() - cpu

    @contextmanager
    def heads(self) -> Iterator[None]:
        began, cpu = time.perf_counter(), time.process_time()
        yield
        self.heads_s += time.perf_counter() - began
        self.heads_cpu_s += time.process_time() - cpu


def cpu_of_tree() -> float:
    """CPU seconds of this process and of its descendants, those that have ended included."""
    this = psutil.Process()
    return sum(sum(process.cpu_times()[:4]) for process in (this, *this.children(recursive=True)))
