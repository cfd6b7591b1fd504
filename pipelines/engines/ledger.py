"""Which units are to do, who has them, and how often each has failed."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from extract.handing import Handed, Job, Record
from pipelines.engines.watch import Watch
from store import BeyondClsError


class Ledger:
    """Hands out units in order; one that a worker loses is handed out again, before all others.

    Args:
        todo: units, and the arrays that each of them misses.
        add: called with the record of each unit that is written.
        tries: times that a unit may fail before the run does.
    """

    def __init__(self, job: Job, todo: Mapping[int, Sequence[str]], add: Callable[[Record], None], tries: int, watch: Watch):
        self._job, self._missing, self._add, self._tries, self._watch = job, dict(todo), add, tries, watch
        self._todo = list(self._missing)
        self._unwritten = set(self._missing)
        self._handed: set[int] = set()
        self._failures: Counter[int] = Counter()
        self._shown: Counter[int] = Counter()  # images of units that progress was reported of
        self._said: set[str] = set()

    @property
    def is_done(self) -> bool:
        """Whether all units are written, or after a stop those that workers have."""
        return not self._unwritten or (self._watch.stops() and not self._handed)

    def __len__(self) -> int:
        """How many units nobody has."""
        return len(self._todo)

    def take(self) -> Handed | None:
        """The next unit; None if others have all that are left, or it is time to stop."""
        if not self._todo or self._watch.stops():
            return None
        unit = self._todo.pop(0)
        self._handed.add(unit)
        return Handed(unit, self._missing[unit])

    def progress(self, unit: int, n_images: int) -> None:
        """So many more images of a unit are computed."""
        self._shown[unit] += n_images
        self._watch.progress(n_images)

    def written(self, record: Record) -> None:
        """A unit is written. The second time, by a worker that was given up, its digests are compared."""
        unit = record["unit"]
        self._add(record)
        self._unwritten.discard(unit)
        self._handed.discard(unit)
        if unit in self._todo:
            self._todo.remove(unit)
        self.progress(unit, self._job.n_images(unit) - self._shown[unit])

    def lost(self, units: Sequence[int]) -> None:
        """A worker has gone with these units; that alone is no failure of theirs."""
        again = [unit for unit in units if unit in self._unwritten and unit not in self._todo]
        self._todo[:0] = again
        self._handed -= set(units)
        for unit in again:
            self.progress(unit, -self._shown[unit])

    def failed(self, unit: int, problem: str, is_final: bool = False) -> None:
        """A unit has failed.

        Args:
            problem: what was the matter.
            is_final: it would be the same again.

        Raises:
            BeyondClsError: it is final, or has failed too often.
        """
        if is_final:
            raise BeyondClsError(problem)
        self._failures[unit] += 1
        start, stop = self._job.rows(unit)
        named = f"unit {unit} (rows {start:,} to {stop - 1:,})"
        if self._failures[unit] >= self._tries:
            times = "once" if self._tries == 1 else f"{self._tries} times"
            raise BeyondClsError(f"{named} has failed {times}, the last time with: {problem}")
        self.warn(f"{named} has failed, and is done again: {problem}")

    def warn(self, message: str) -> None:
        """Show what a user should know; what several workers say is shown once."""
        if message not in self._said:
            self._said.add(message)
            self._watch.warn(message)
