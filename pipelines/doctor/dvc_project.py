"""A project's settings as DVC's commands report them: they know all the places that settings come from."""

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from store.errors import BeyondClsError

SECONDS = 60  # for a command; it takes half a second unless Python's files come over a slow network


@dataclass(frozen=True)
class Project:
    """Attributes:
    settings: `cache.type`, `remote.NAME.url` and the like, of all levels.
    """

    root: Path
    cache: Path
    settings: dict[str, str]


def dvc_command() -> list[str] | None:
    """How DVC is started here: as a package beside this one, or as a program on the path; None without it."""
    try:
        if metadata.version("dvc"):
            return [sys.executable, "-P", "-m", "dvc"]  # -P: files in the current folder do not count as packages
    except metadata.PackageNotFoundError:
        pass
    program = shutil.which("dvc")
    return [program] if program else None


def project_root(folder: Path) -> Path | None:
    """The folder with `.dvc`, at or above this one."""
    folder = folder.resolve()
    return next((f for f in (folder, *folder.parents) if (f / ".dvc").is_dir()), None)


def find_project(folder: Path) -> Project | None:
    """The project that a folder belongs to; None outside of any project, or without DVC.

    Raises:
        BeyondClsError: DVC cannot read its settings.
    """
    root = project_root(folder)
    if root is None or dvc_command() is None:
        return None
    with ThreadPoolExecutor() as pool:
        listed = pool.submit(ask, root, "config", "--list")
        cache = pool.submit(ask, root, "cache", "dir")
        pairs = (line.partition("=") for line in listed.result().splitlines())
        return Project(root, root / cache.result().strip(), {name: value for name, _, value in pairs})


def ask(folder: Path, *arguments: str) -> str:
    """The output of a command of DVC.

    Raises:
        BeyondClsError: it fails.
    """
    command = [*(dvc_command() or ["dvc"]), *arguments]
    shown = f"`dvc {' '.join(arguments)}`"
    quiet = {**os.environ, "DVC_NO_ANALYTICS": "1"}
    try:
        completed = subprocess.run(command, cwd=folder, env=quiet, capture_output=True, text=True, timeout=SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BeyondClsError(f"{shown} does not run: {error}; install DVC again: pip install --force-reinstall dvc") from error
    if completed.returncode:
        output = " ".join((completed.stderr or completed.stdout).split())[-400:]
        raise BeyondClsError(f"{shown} fails in {folder}: {output}; mend what it says, most likely in .dvc/config")
    return completed.stdout
