"""Several requests at a time, where each of them waits for a network."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def map_parallel(work: Callable[[Item], Result], items: Iterable[Item], requests: int) -> Iterator[Result]:
    """`work` of each item, in their order; in as many threads as `requests`, or in this one.

    Raises:
        Exception: what `work` raises; items not begun by then are left undone.
    """
    if requests <= 1:
        yield from map(work, items)
        return
    pool = ThreadPoolExecutor(requests, "beyondcls-requests")
    try:
        yield from pool.map(work, items)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
