"""The look of all progress bars: done of all, rate, time left."""

import sys
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

from pipelines.process.terminal import SafeConsole, printing_safely


class Rate(ProgressColumn):
    """Units per second since the start, e.g. `412 images/s`."""

    def __init__(self, unit: str):
        super().__init__()
        self.unit = unit

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text(f"{speed:,.0f} {self.unit}/s" if speed else f"– {self.unit}/s")


@contextmanager
def progress_bar(what: str, total: int, unit: str, err: bool = False) -> Iterator[Callable[[int], None]]:
    """A bar on the terminal; yields a function that takes the number of units since its last call.

    Args:
        err: on standard error, for commands whose output other programs read.
    """
    times = (TextColumn("left"), TimeRemainingColumn(), TextColumn("after"), TimeElapsedColumn())
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), Rate(unit), *times)
    # What is printed meanwhile appears above the bar, unless it goes elsewhere.
    with Progress(*columns, console=SafeConsole(err), redirect_stdout=not err or sys.stdout.isatty()) as bar, printing_safely():
        task = bar.add_task(what, total=total)
        yield lambda n: bar.advance(task, n)
