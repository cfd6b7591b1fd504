"""What other processes make of the images of coming batches, while this one trains; by a loader of torch."""

from collections.abc import Iterator
from typing import Any

Coming = list[tuple[int, int]]  # row and view of each image of a batch


class ComingBatches:
    """The images of the batches that are to come; a loader reads them when an epoch begins.

    Attributes:
        batches: to be set before that, in place.
    """

    def __init__(self) -> None:
        self.batches: list[Coming] = []

    def __iter__(self) -> Iterator[Coming]:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)


def processes(workers: int) -> dict[str, Any]:
    """Options of a loader with so many processes beside this one, or none; they live as long as it does."""
    if not workers:
        return {}
    # Not forked, as torch has threads here that a fork would not have.
    return {"num_workers": workers, "multiprocessing_context": "spawn", "persistent_workers": True}
