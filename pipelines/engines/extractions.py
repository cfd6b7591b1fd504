"""Extractions on engines: run elsewhere as a whole, or by processes that share the set, each the command itself as a task."""

import platform
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from pipelines.engines.engine import Agenda, Engine, Run, Watch, following
from pipelines.engines.slurm import Slurm, logs_of
from pipelines.parameters.engine import without_engine
from pipelines.sharing.publish import SCRATCH
from store import BeyondClsError, FeatureStore
from store.format.unfinished import HEADER, progress_at
from store.places import LocalFolder, is_remote
from store.writing.publishing import STAGING

if TYPE_CHECKING:
    from store import FeatureWriter

EARLY = datetime.fromtimestamp(0, UTC)
JOIN = "--join"  # and where the set is staged: a task that computes units of a set which another process finishes
IMPORTS = ("pipelines.extract", "extract.run", "extract.encoders")  # which tasks import


def submitted(
    engine: Engine, verb: str, out: Path, root: str | None, script: Path | None, dry_run: bool, say: Callable[[str], None]
) -> bool:
    """Whether the command was run elsewhere, or only a script for that was wanted, to write or to print (`dry_run`).

    `verb`: what to do with the set at `out`; `root`: of all sets, if they have one; `say`: prints a line.
    """
    check_script(engine, script, dry_run)
    if not isinstance(engine, Slurm):
        return False
    if verb == "repair":
        raise BeyondClsError("one process repairs a feature set; give --on here with --repair")
    arguments = without_engine(sys.argv[1:])
    if script is not None or dry_run:
        if script is not None:
            logs_of(out).mkdir(parents=True, exist_ok=True)  # Slurm makes none
        hand_over(engine.script(arguments, out), script, f"logs will be in {logs_of(out)}", say)
        return True
    folder = out.parent if root is None else out.parent / SCRATCH if is_remote(root) else Path(root)
    named = re.compile(re.escape(out.name) + "(-[0-9a-f]{32})+")

    def staged() -> Path | None:
        """Where the set is staged, under whichever key; the last one that was begun."""
        begun = [f for f in (folder / STAGING).glob("*") if named.fullmatch(f.name) and (f / HEADER).is_file()]
        return max(begun, key=lambda place: LocalFolder(place).time_now(HEADER) or EARLY) if begun else None

    engine.run(arguments, out, staged, say)
    if not (out / "zarr.json").exists():
        raise BeyondClsError(f"the job has ended, but there is no set at {out}; see its logs, and give the command again")
    spec = FeatureStore.describe(out).spec
    say(f"{out}: {spec.n_images:,} images, key {spec.key}")
    return True


def check_script(engine: Engine, script: Path | None, dry_run: bool) -> None:
    if not isinstance(engine, Slurm) and (script is not None or dry_run):
        raise BeyondClsError(f"{'--dry-run' if dry_run else '--script'} is for the script of a job array; give --on slurm, too")


def hand_over(text: str, script: Path | None, about: str, say: Callable[[str], None]) -> None:
    """Write a script, which only its user can read, or print it if there is no file for it; `about`: where logs will be."""
    if script is None:
        say(text.rstrip())
        return
    if script.exists() and b"#SBATCH --requeue --signal=B:USR1@" not in script.read_bytes():
        raise BeyondClsError(f"{script} is no script for sbatch that was written here, so it stays; give another --script")
    script.touch(0o600)
    script.chmod(0o600)  # addresses in it may be signed
    script.write_text(text)
    say(f"{script}: submit it with `sbatch {shlex.quote(str(script))}`; {about}")


def joined_out(staging: Path) -> Path:
    """The folder of a set that is staged here, as `joins` of `Settings` has it."""
    return staging.parent.parent / staging.name[:-33]


def has_all(staging: Path) -> bool:
    """Whether a task that joins has nothing left to do; this machine may lack the folder."""
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

    `arguments`: of the command, without those on engines. Logs are beside `out`.
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
        begun = progress_at(LocalFolder(staging))
        with following(lambda: staging, watch.progress, begun.images_done if begun is not None else 0):
            engine.run_all(agenda)
        if agenda.problems and writer.wait_for_others():
            raise BeyondClsError(next(iter(agenda.problems.values())))

    return compute
