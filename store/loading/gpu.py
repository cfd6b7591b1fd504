"""Batches onto a GPU: copied as they are stored and decoded there, beside the training loop and two batches ahead of it."""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping
from typing import Any

from torch import Tensor

from store.loading.lane import Lane, Mark

Batch = dict[str, Tensor]
AHEAD = 2  # batches that are on their way or ready while the training loop has one


def batches_on_gpu(
    batches: Iterable[Mapping[Any, Tensor]], lane: Lane, decode: Callable[[dict[Any, Tensor]], Batch]
) -> Generator[Batch, None, None]:
    """Move batches of host tensors (pinned: others are copied twice, and the loop waits) to a device and decode them there.

    No more than `AHEAD` host batches are held for their copies, and the training loop is never more than `AHEAD` batches
    ahead of the device: where nothing else makes it wait, its batches would fill the device's memory.
    A caller that stops early has to close the generator.
    """
    copying: deque[tuple[Mark, Mapping[Any, Tensor]]] = deque()  # host memory must not be used again before it was copied
    ready: deque[tuple[Batch, Mark]] = deque()
    in_use: deque[Mark] = deque()

    def hand_over() -> Batch:
        batch, mark = ready.popleft()
        lane.hand_over(batch.values(), mark)
        return batch

    def was_used() -> None:
        in_use.append(lane.mark_of_loop())
        if len(in_use) > AHEAD:
            lane.wait_for(in_use.popleft())

    try:
        for host in batches:
            with lane.work():
                on_device = {key: lane.copy(values) for key, values in host.items()}
                copying.append((lane.mark(), host))
                decoded = decode(on_device)
                ready.append((decoded, lane.mark()))
            del host, on_device, decoded
            while copying and (len(copying) > AHEAD or copying[0][0].query()):
                lane.wait_for(copying[0][0])
                copying.popleft()
            if len(ready) > AHEAD:
                yield hand_over()
                was_used()
        while ready:
            yield hand_over()
            was_used()
    finally:
        lane.wait()  # before `copying` lets go of the memory
