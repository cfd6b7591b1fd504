"""One look for all progress bars: done of all, rate, time left."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text


class Rate(ProgressColumn):
    """Units per second since the start, e.g. `412 images/s`."""

    def __init__(self, unit: str):
        super().__init__()
        self.unit = unit

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text(f"{speed:,.0f} {self.unit}/s" if speed else f"– {self.unit}/s")


@contextmanager
def progress_bar(what: str, total: int, unit: str) -> Iterator[Callable[[int], None]]:
    """A bar on the terminal; yields a function that takes how many units were done since its last call."""
    left = (TextColumn("left"), TimeRemainingColumn(), TextColumn("after"), TimeElapsedColumn())
    with Progress(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), Rate(unit), *left) as bar:
        task = bar.add_task(what, total=total)
        yield lambda n: bar.advance(task, n)
