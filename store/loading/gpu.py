"""Batches onto a CUDA device: copied and decoded on a separate stream, one batch ahead of the training loop."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

Batch = dict[str, Tensor]


def batches_on_gpu(
    batches: Iterable[Mapping[Any, Tensor]], device: torch.device, decode: Callable[[dict[Any, Tensor]], Batch]
) -> Iterator[Batch]:
    """Move batches of (pinned) host tensors to `device` and decode them there."""
    stream = torch.cuda.Stream(device)
    in_flight: deque[tuple[torch.cuda.Event, Any]] = deque()  # host memory must outlive the copy from it
    ready: tuple[Batch, torch.cuda.Event] | None = None
    for host in batches:
        with torch.cuda.stream(stream):
            on_device = {key: values.to(device, non_blocking=True) for key, values in host.items()}
            decoded, event = decode(on_device), stream.record_event()
        in_flight.append((event, host))
        del host, on_device
        while in_flight and in_flight[0][0].query():
            in_flight.popleft()
        if ready is not None:
            yield _hand_over(*ready)
        ready = decoded, event
    if ready is not None:
        yield _hand_over(*ready)
    stream.synchronize()


def _hand_over(batch: Batch, event: torch.cuda.Event) -> Batch:
    """The consumer's stream waits for the copy, and the memory is not used again before it is done with it."""
    for values in batch.values():
        consumer = torch.cuda.current_stream(values.device)
        consumer.wait_event(event)
        values.record_stream(consumer)
    return batch
