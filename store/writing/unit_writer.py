"""What extraction asks of whoever writes a feature set, wherever the set goes."""

import random
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import numpy as np


def own_first(units: Sequence[int], task: int, n_tasks: int) -> list[int]:
    """Units in the order in which one of several tasks tries them: its share, then others' in an order of its own.

    Else tasks that are done with their shares would all try the same unit.
    """
    own = [unit for unit in units if unit % n_tasks == task]
    others = [unit for unit in units if unit % n_tasks != task]
    random.Random(task).shuffle(others)
    return own + others


class UnitWriter(ABC):
    """Writes a feature set unit by unit: unit u is shard u of every array with an image axis. Use it in a `with` statement."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None:
        """Let another writer go on. What is written stays."""

    @abstractmethod
    def missing_units(self) -> list[int]:
        """Units of which arrays are not written yet, in order, as far as this writer knows."""

    @abstractmethod
    def claim(self, unit: int) -> bool:
        """Take a unit that still misses arrays; false if it misses none, or another process has it."""

    @abstractmethod
    def arrays_to_compute(self, unit: int) -> list[str]:
        """Arrays of a unit that must be given to `write_unit`."""

    @abstractmethod
    def rows_to_compute(self, unit: int, names: Sequence[str]) -> np.ndarray:
        """Rows for which `write_unit` must be given some arrays of a unit, ascending."""

    @abstractmethod
    def write_unit(self, unit: int, rows: Mapping[str, np.ndarray], notes: Sequence[Mapping[str, Any]] = ()) -> None:
        """Write a unit: name -> stored values, and notes on its invalid rows."""

    def wait_for_others(self) -> list[int]:
        """Where all units are claimed: wait until they are written, or some are free again; those, or none.

        A writer that does not wait returns none: others finish the set, or it is finished when the command is given again.
        """
        return []

    @abstractmethod
    def finish(self, attributes: Mapping[str, Any]) -> bool:
        """Make the units a feature set. False if others that share the writing are not done."""
