"""Batches onto a GPU: copied as they are stored and decoded there, beside the training loop and two batches ahead of it."""

import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

Batch = dict[str, Tensor]
AHEAD = 2  # batches that are on their way or ready while the training loop has one


class Lane:
    """A queue of a device's copies and decoding (a stream of CUDA) beside that of the training loop, which it runs as well.

    Attributes:
        wait_s: seconds for which this process waited for the device.
    """

    wait_s = 0.0

    def __init__(self, device: torch.device):
        self.device, self._stream = device, torch.cuda.Stream(device)

    def work(self) -> AbstractContextManager[Any]:
        """What is asked of the device inside goes into this queue."""
        return torch.cuda.stream(self._stream)

    def copy(self, host: Tensor) -> Tensor:
        """A copy on the device. It is made later: `host` must stay as it is until a `mark` after it is reached."""
        return host.to(self.device, non_blocking=True)

    def mark(self) -> torch.cuda.Event:
        """The end of this queue at present."""
        return self._stream.record_event()

    def mark_of_loop(self) -> torch.cuda.Event:
        """The end of the training loop's queue at present."""
        return torch.cuda.current_stream(self.device).record_event()

    def hand_over(self, values: Iterable[Tensor], ready: torch.cuda.Event) -> None:
        """The training loop's queue waits for `ready`, and the memory of `values` is not used again before it is done."""
        loop = torch.cuda.current_stream(self.device)
        loop.wait_event(ready)
        for one in values:
            one.record_stream(loop)

    def wait(self) -> None:
        """Wait until this queue is empty."""
        self._stream.synchronize()

    def wait_for(self, mark: torch.cuda.Event) -> None:
        began = time.perf_counter()
        mark.synchronize()
        self.wait_s += time.perf_counter() - began


def batches_on_gpu(
    batches: Iterable[Mapping[Any, Tensor]], lane: Lane, decode: Callable[[dict[Any, Tensor]], Batch]
) -> Generator[Batch, None, None]:
    """Move batches of host tensors (pinned: others are copied twice, and the loop waits) to a device and decode them there.

    No more than `AHEAD` host batches are held for their copies, and the training loop is never more than `AHEAD` batches
    ahead of the device: where nothing else makes it wait, its batches would fill the device's memory.
    A caller that stops early has to close the generator.
    """
    # Host memory must not be used again before it was copied.
    copying: deque[tuple[torch.cuda.Event, Mapping[Any, Tensor]]] = deque()
    ready: deque[tuple[Batch, torch.cuda.Event]] = deque()
    in_use: deque[torch.cuda.Event] = deque()

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
