"""Scripts that a user submits, in place of the command."""

import shlex
from collections.abc import Callable
from pathlib import Path

from pipelines.engines.engine import Engine
from pipelines.engines.slurm import Slurm
from store import BeyondClsError


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
