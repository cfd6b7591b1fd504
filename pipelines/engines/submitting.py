"""Extractions that run elsewhere as a whole."""

import re
import shlex
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from pipelines.engines.engine import Engine
from pipelines.engines.slurm import Slurm, logs_of
from pipelines.parameters.engine import without_engine
from pipelines.sharing.publish import SCRATCH
from store import BeyondClsError, FeatureStore
from store.format.unfinished import HEADER
from store.places import LocalFolder, is_remote
from store.writing.publishing import STAGING

EARLY = datetime.fromtimestamp(0, UTC)


def submitted(
    engine: Engine, verb: str, out: Path, root: str | None, script: Path | None, dry_run: bool, say: Callable[[str], None]
) -> bool:
    """Whether the command was run elsewhere, or only a script for that was wanted.

    Args:
        verb: what to do with the set at `out`.
        root: of all sets, if they have one.
        script: file for the script.
        dry_run: print the script.
        say: prints a line.

    Raises:
        BeyondClsError: the engine has no script; several tasks are to repair a set; or the run has failed.
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
    folder, name = _staged_at(out, root)
    engine.run(arguments, out, partial(staged, folder, name), say)
    if not (out / "zarr.json").exists():
        raise BeyondClsError(f"the job has ended, but there is no set at {out}; see its logs, and give the command again")
    spec = FeatureStore.describe(out).spec
    say(f"{out}: {spec.n_images:,} images, key {spec.key}")
    return True


def _staged_at(out: Path, root: str | None) -> tuple[Path, str]:
    """Beside which folder, and under which name, a set is staged."""
    if root is None:
        return out.parent, out.name
    return (out.parent / SCRATCH if is_remote(root) else Path(root)), out.name


def staged(folder: Path, name: str) -> Path | None:
    """Where the set of a name is staged that will be in a folder, under whichever key; the last one that was begun."""
    named = re.compile(re.escape(name) + "(-[0-9a-f]{32})+")
    begun = [place for place in (folder / STAGING).glob("*") if named.fullmatch(place.name) and (place / HEADER).is_file()]
    return max(begun, key=lambda place: LocalFolder(place).time_now(HEADER) or EARLY) if begun else None


def check_script(engine: Engine, script: Path | None, dry_run: bool) -> None:
    """Refuse to write a script where there is none.

    Raises:
        BeyondClsError: the engine has no script.
    """
    if not isinstance(engine, Slurm) and (script is not None or dry_run):
        raise BeyondClsError(f"{'--dry-run' if dry_run else '--script'} is for the script of a job array; give --on slurm, too")


def hand_over(text: str, script: Path | None, about: str, say: Callable[[str], None]) -> None:
    """Write a script, which only its user can read, or print it if there is no file for it.

    Args:
        about: where logs will be.

    Raises:
        BeyondClsError: the file exists, and is no such script.
    """
    if script is None:
        say(text.rstrip())
    else:
        if script.exists() and b"#SBATCH --requeue --signal=B:USR1@" not in script.read_bytes():
            raise BeyondClsError(f"{script} is no script for sbatch that was written here, so it stays; give another --script")
        script.touch(0o600)
        script.chmod(0o600)  # addresses in it may be signed
        script.write_text(text)
        say(f"{script}: submit it with `sbatch {shlex.quote(str(script))}`; {about}")
