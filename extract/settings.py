"""How an extraction runs. What it writes does not depend on it, but for images that cannot be read."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from extract.difference import SampleCheck
from extract.stages import Spent
from store import BeyondClsError, FeatureStore
from store.writing.writer import FeatureWriter

OnError = Literal["raise", "record"]
# Has processes compute the units that miss, so many, of a set that a writer has begun.
Engine = Callable[[FeatureWriter, int], None]


def _ignore(*_: object) -> None:
    pass


def _goes_on() -> bool:
    return False


@dataclass(frozen=True)
class Settings:
    """How an extraction runs.

    Attributes:
        batch_size: images per forward pass; halved where memory does not suffice.
        workers: number of threads that decode, as for `decoders`.
        on_error: "raise" at the first image or tar that is damaged or unlabelled; "record" keeps its row, marked invalid.
        recompute: extract again what a sample shows to differ, instead of stopping; with one task only.
        task_id, n_tasks: number of this process among those that write the set together, on one machine or several with a
            common file system. Each begins with its share of the units and goes on with units that no other works on, so
            fewer processes than planned may run.
        joins: where the set is staged by a process that has begun it, has compared what there was, and will finish it; this one
            computes units for it.
        engine: has other processes compute units in place of this one; with one task only.
        stops: whether to stop after the present unit, the first at least, and not to finish.
        progress: called with the number of images done since the last call.
        warn: called with what a user should know.
        devices: called with what computed each unit, where an engine had them computed.
        spent: called at the end with where the time of this process went.
        checked: called with each set that was compared by a sample, and the result, if the two agree.

    Raises:
        BeyondClsError: there is no task of this number.
    """

    batch_size: int = 128
    workers: int | None = None
    on_error: OnError = "raise"
    recompute: bool = False
    task_id: int = 0
    n_tasks: int = 1
    joins: Path | None = None
    engine: Engine | None = None
    stops: Callable[[], bool] = _goes_on
    progress: Callable[[int], None] = _ignore
    warn: Callable[[str], None] = _ignore
    devices: Callable[[Mapping[int, Mapping[str, Any]]], None] = _ignore
    spent: Callable[[Spent], None] = _ignore
    checked: Callable[[FeatureStore, SampleCheck], None] = _ignore

    def __post_init__(self) -> None:
        if not 0 <= self.task_id < self.n_tasks:
            raise BeyondClsError(f"task_id is {self.task_id}, expected 0 to {self.n_tasks - 1} (n_tasks is {self.n_tasks})")

    @property
    def is_first(self) -> bool:
        """Whether this is the first task, which alone compares finished sets."""
        return self.task_id == 0
