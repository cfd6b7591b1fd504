"""What a device does beside the training loop's work: a queue of copies and decoding."""

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import Tensor


class Mark(Protocol):
    """A place in a device's queue, as `torch.cuda.Event` is one."""

    def query(self) -> bool:
        """Whether the device has got there."""

    def synchronize(self) -> None:
        """Wait until it has."""


class Lane(ABC):
    """A queue of a device's work beside that of the training loop, which runs on the device as well.

    Attributes:
        wait_s: seconds for which this process waited for the device.
    """

    def __init__(self) -> None:
        self.wait_s = 0.0

    @abstractmethod
    def work(self) -> AbstractContextManager[Any]:
        """What is asked of the device inside goes into this queue."""

    @abstractmethod
    def copy(self, host: Tensor) -> Tensor:
        """A copy on the device. It is made later: `host` must stay as it is until a `mark` after it is reached."""

    @abstractmethod
    def mark(self) -> Mark:
        """The end of this queue at present."""

    @abstractmethod
    def mark_of_loop(self) -> Mark:
        """The end of the training loop's queue at present."""

    @abstractmethod
    def hand_over(self, values: Iterable[Tensor], ready: Mark) -> None:
        """The training loop's queue waits for `ready`, and the memory of `values` is not used again before it is done."""

    @abstractmethod
    def wait(self) -> None:
        """Wait until this queue is empty."""

    def wait_for(self, mark: Mark) -> None:
        began = time.perf_counter()
        mark.synchronize()
        self.wait_s += time.perf_counter() - began


class CudaLane(Lane):
    """A stream of a CUDA device."""

    def __init__(self, device: torch.device):
        super().__init__()
        self.device, self._stream = device, torch.cuda.Stream(device)

    def work(self) -> AbstractContextManager[Any]:
        return torch.cuda.stream(self._stream)

    def copy(self, host: Tensor) -> Tensor:
        return host.to(self.device, non_blocking=True)

    def mark(self) -> Mark:
        return self._stream.record_event()

    def mark_of_loop(self) -> Mark:
        return torch.cuda.current_stream(self.device).record_event()

    def hand_over(self, values: Iterable[Tensor], ready: Any) -> None:
        loop = torch.cuda.current_stream(self.device)
        loop.wait_event(ready)
        for one in values:
            one.record_stream(loop)

    def wait(self) -> None:
        self._stream.synchronize()
