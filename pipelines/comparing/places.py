"""The folder of results that an argument names: itself, or what DVC has of a commit."""

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipelines.report.kinds import KINDS, RECEIPTS
from probe.result_files import DESCRIPTION, METRICS
from store import BeyondClsError
from store.moving.receipt import CHECK

NEEDED = (METRICS, DESCRIPTION, "localisation.json", "correct.npz")  # by name; and records of extractions


@contextmanager
def folder_of(name: str) -> Iterator[Path]:
    """A folder by its name; of a commit, a folder with its results that lasts as long as the context.

    Raises:
        BeyondClsError: there is neither, or DVC does not have what the commit refers to.
    """
    if Path(name).is_dir():
        yield Path(name)
        return
    commit = _resolve_commit(name)
    if commit is None:
        raise BeyondClsError(
            f"there is no folder {name!r}, and no commit of that name in this folder's git repository; name a project, a "
            "folder of probes, or a branch, tag or commit"
        )
    with tempfile.TemporaryDirectory(prefix="beyondcls-compare-") as folder:
        _copy_from_commit(name, commit, Path(folder))
        yield Path(folder)


def _resolve_commit(name: str) -> str | None:
    """Its digest; None if it is no commit, or there is no git."""
    command = ["git", "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def _copy_from_commit(name: str, commit: str, out: Path) -> None:
    """Copy files of results as a commit of this folder's project has them.

    Raises:
        BeyondClsError: DVC is missing, or cannot read the commit, or lacks files.
    """
    try:
        from dvc.api import DVCFileSystem
        from dvc.exceptions import DvcException
        from dvc.scm import SCMError
        from dvc_data.index import DataIndexDirError
    except ModuleNotFoundError as error:
        raise BeyondClsError(
            f"results of the commit {name!r} are in DVC's cache, and dvc, which reads it, is not installed here; pip install "
            "dvc"
        ) from error
    try:
        repo = DVCFileSystem(rev=commit)
        files = [file for kind in (*KINDS, RECEIPTS) if repo.isdir(kind) for file in repo.find(kind)]
        for file in files:
            if Path(file).name in NEEDED or file.endswith(CHECK):
                place = out / file
                place.parent.mkdir(parents=True, exist_ok=True)
                repo.get_file(file, str(place))
    except (DvcException, SCMError, DataIndexDirError, OSError) as error:
        raise BeyondClsError(
            f"DVC does not have all results of the commit {name!r} here ({error}); get them by `dvc fetch --all-commits`, or "
            "compare with a checkout of it (`git worktree add FOLDER COMMIT`, and `dvc checkout` in it)"
        ) from error
