"""An extraction by processes that an engine starts: each is the command itself, as one of several tasks that share the set."""

import platform
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING

from pipelines.engines.agenda import Agenda, Watch
from pipelines.engines.engine import Engine
from pipelines.engines.run import Run
from store import BeyondClsError
from store.format.unfinished import progress_at
from store.places import LocalFolder

if TYPE_CHECKING:
    from store import FeatureWriter

JOIN = "--join"  # and where the set is staged: a task that computes units of a set which another process finishes
IMPORTS = ("pipelines.extract", "extract.run", "extract.encoders")  # which tasks import
SECONDS = 1.0  # between two looks at how far it is


def joined_out(staging: Path) -> Path:
    """The folder of a set that is staged here, as `joins` of `Settings` has it."""
    return staging.parent.parent / staging.name[:-33]


def has_all(staging: Path) -> bool:
    """Whether a task that joins has nothing left to do.

    Raises:
        BeyondClsError: this machine lacks the folder.
    """
    if not staging.parent.parent.is_dir():
        raise BeyondClsError(
            f"there is no folder {staging.parent.parent} on {platform.node()}; all machines need the folder of the project, "
            "images and feature sets under the same path as here"
        )
    progress = progress_at(LocalFolder(staging))
    return progress is None or progress.done == progress.n_units


def sharing(
    engine: Engine, out: Path, arguments: Sequence[str], watch: Watch, say: Callable[[str], None]
) -> "Callable[[FeatureWriter, int], None] | None":
    """What has units computed by an engine's processes, as `Settings.engine`; None if this process computes them.

    Args:
        out: folder of the set, beside which logs are.
        arguments: of the command, without those on engines.
        watch: `progress` is called with numbers of images.
    """
    if not engine.n_tasks(1):
        return None

    def compute(writer: "FeatureWriter", n_units: int) -> None:
        staging = writer.staging.absolute()
        n = engine.n_tasks(n_units)
        shared = (*arguments, JOIN, str(staging), "--n-tasks", str(n), "--task-id")
        runs = [Run.writing(f"{out}.task{task}", (*shared, str(task))) for task in range(n)]
        # One failure ends all.
        quiet = Watch(lambda _: None, watch.warn, lambda: watch.stops() or bool(agenda.problems))
        agenda = Agenda(runs, engine.tries, quiet, say, IMPORTS, again=True)
        with _progress(staging, watch):
            engine.run_all(agenda)
        if agenda.problems and writer.wait_for_others():
            raise BeyondClsError(next(iter(agenda.problems.values())))

    return compute


@contextmanager
def _progress(staging: Path, watch: Watch) -> Iterator[None]:
    """Report images of units as records of them appear."""
    place, ended = LocalFolder(staging), Event()
    begun = progress_at(place)
    shown = begun.images_done if begun is not None else 0

    def look() -> None:
        nonlocal shown
        if (now := progress_at(place)) is not None:
            watch.progress(now.images_done - shown)
            shown = now.images_done

    def keep_looking() -> None:
        while not ended.wait(SECONDS):
            look()

    looking = Thread(target=keep_looking, daemon=True)
    looking.start()
    try:
        yield
    finally:
        ended.set()
        looking.join()
        look()
