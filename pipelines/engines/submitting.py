"""Commands that run elsewhere as a whole."""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from pipelines.engines.engine import Engine
from pipelines.engines.journalled import staged
from pipelines.engines.slurm import Slurm, logs_of
from pipelines.parameters.extraction import ENGINE
from pipelines.sharing.publish import SCRATCH
from store import BeyondClsError, FeatureStore
from store.places import is_remote

WITH_VALUE = tuple(f"--{name}" for name in (*ENGINE, "script"))


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
    if not isinstance(engine, Slurm):
        if script is not None or dry_run:
            raise BeyondClsError(
                f"{'--dry-run' if dry_run else '--script'} is for the script of a job array; give --on slurm, too"
            )
        return False
    if verb == "repair":
        raise BeyondClsError("one process repairs a feature set; give --on here with --repair")
    arguments = for_a_task(sys.argv[1:])
    if script is not None or dry_run:
        text = engine.script(arguments, out)
        if script is None:
            say(text.rstrip())
        else:
            script.write_text(text)
            logs_of(out).mkdir(parents=True, exist_ok=True)  # Slurm makes none
            say(f"{script}: submit it with `sbatch {script}`; logs will be in {logs_of(out)}")
        return True
    folder, name = _staged_at(out, root)
    engine.run(arguments, out, partial(staged, folder, name), say)
    if not (out / "zarr.json").exists():
        raise BeyondClsError(f"the job has ended, but there is no set at {out}; see its logs, and give the command again")
    spec = FeatureStore.describe(out).spec
    say(f"{out}: {spec.n_images:,} images, key {spec.key}")
    return True


def for_a_task(arguments: list[str]) -> list[str]:
    """Arguments of this command for one of several tasks: without those that concern engines."""
    kept: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        if argument in WITH_VALUE:
            next(rest, None)
        elif argument != "--dry-run" and not argument.startswith(tuple(f"{name}=" for name in WITH_VALUE)):
            kept.append(argument)
    return kept


def _staged_at(out: Path, root: str | None) -> tuple[Path, str]:
    """Beside which folder, and under which name, a set is staged."""
    if root is None:
        return out.parent, out.name
    return (out.parent / SCRATCH if is_remote(root) else Path(root)), out.name
