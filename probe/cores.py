"""Work that is shared by the cores in whole items, each computed by one."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from typing import TypeVar

import torch

Item = TypeVar("Item")


@contextmanager
def cores(device: torch.device) -> Iterator[Callable[[Callable[[Item], object], Iterable[Item]], None]]:
    """A function that calls another for each item, on all cores of a CPU at once; one after the other on other devices.

    Each call computes on one core. Threads inside of operations would wait for one another after each of them, which takes
    longer than small operations do, many times as long where another process uses a core as well.
    """
    n = torch.get_num_threads()
    is_shared = device.type == "cpu" and n > 1
    each = _thread_pool(n).map if is_shared else map

    def on_all(call: Callable[[Item], object], items: Iterable[Item]) -> None:
        for _ in each(call, items):  # errors are raised here
            pass

    torch.set_num_threads(1 if is_shared else n)
    try:
        yield on_all
    finally:
        torch.set_num_threads(n)


@cache
def _thread_pool(n: int) -> ThreadPoolExecutor:
    """Threads that stay: the allocator keeps what each thread has freed for that thread, so new ones would add to it."""
    return ThreadPoolExecutor(n, "beyondcls-core", torch.set_num_threads, (1,))
