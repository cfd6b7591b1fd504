"""`beyondcls store rm`: removing a feature set, or the unfinished part of one, and nothing else."""

import json
import os
import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from pipelines.store.find import REMOVED, is_feature_set, nbytes_of, staged_in
from pipelines.store.references import ProjectOption, locked, naming
from pipelines.store.table import size
from store import StoreError
from store.places.disk import make_folder
from store.writing.publishing import STAGING, discard, foreign


def rm(
    path: Annotated[Path, typer.Argument(help="folder of a feature set")],
    staging: Annotated[
        bool, typer.Option("--staging", help="remove what is unfinished of it under .staging instead; or PATH is one of these")
    ] = False,
    project: ProjectOption = None,
    force: Annotated[bool, typer.Option("--force", help="remove it even if a lock file of DVC names it")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="do not ask")] = False,
) -> None:
    """Remove a feature set, after asking. Folders that are not one, or that also hold other files, are left alone.

    What dvc.lock of this folder, or of --project, names stays, unless --force is given.
    """
    if path.is_symlink():
        raise StoreError(f"{path} is a link to {os.readlink(path)}; name the folder itself")
    # "." and ".." have no name that the lock and the staged parts could be found by.
    path = Path(os.path.abspath(path)) if path.name in ("", "..") else path
    targets = _staged(path) if staging else [(path, path, key_at(path))]
    for folder, _, _ in targets:
        _check_own(folder)
    if not (staging or force) and (
        lock := naming(str(path), [targets[0][2]], (path / "zarr.json").read_bytes(), locked(project))
    ):
        raise StoreError(f"{lock} names {path}, so it stays; --force removes it, and its stage of DVC makes it again")
    shown = ", ".join(f"{folder} ({size(nbytes_of(folder))})" for folder, _, _ in targets)
    if not yes:
        if not sys.stdin.isatty():
            raise StoreError(f"nobody can be asked here whether to remove {shown}; give --yes if that is meant")
        if not typer.confirm(f"remove {shown}?"):
            typer.echo("nothing was removed")
            raise typer.Exit(1)
    for folder, feature_set, key in targets:
        if not staging and key_at(folder) != key:  # while somebody was asked
            raise StoreError(f"{folder} is another feature set than a moment ago, and stays; give the command again")
        remove(folder, feature_set, key)
        typer.echo(f"removed {folder}")


def remove(folder: Path, feature_set: Path, key: str) -> None:
    """Remove a feature set, or the unfinished part of the one at `feature_set`.

    Raises:
        StoreError: a process is writing it, or an extension of it with another key; or others have put files there.
    """
    for staged in staged_in(feature_set.parent):
        if staged.feature_set == feature_set and (writer := staged.writer):
            raise StoreError(
                f"{feature_set} is being written by {writer}; wait until it has finished, or stop it, and try again"
            )
    place = feature_set.parent / STAGING
    removed = place / f"{REMOVED}{feature_set.name}-{key}"
    if folder != removed:
        discard(removed)  # of an earlier removal that was killed
        make_folder(place)
        os.rename(folder, removed)  # atomically: from here on, no half set has its name
        try:
            _check_own(removed, folder)
        except StoreError:
            os.rename(removed, folder)
            raise
    discard(removed)
    with suppress(OSError):  # not empty: something else is staged there
        place.rmdir()


def _check_own(folder: Path, named: Path | None = None) -> None:
    """Refuse to remove a folder, which was `named` so, with files of others."""
    if (other := next(foreign(folder), None)) is not None:
        other = (named or folder) / other.relative_to(folder)
        raise StoreError(f"{other} does not belong to a feature set; move it away first, then remove {named or folder}")


def key_at(path: Path) -> str:
    """The key of a feature set, zeros if it is too damaged to tell.

    Raises:
        StoreError: it is not a feature set.
    """
    if not path.is_dir():
        raise StoreError(f"there is no folder {path}; `beyondcls store ls` lists the feature sets")
    file = path / "zarr.json"
    if not file.is_file() or not is_feature_set(path):
        raise StoreError(f"{path} is not a feature set (its zarr.json does not say so); only feature sets are removed")
    try:
        key = json.loads(file.read_bytes())["attributes"]["beyondcls"]["key"]
        return key if re.fullmatch(r"[0-9a-f]{32}", key) else "0" * 32
    except (ValueError, KeyError, TypeError, RecursionError):
        return "0" * 32


def _staged(path: Path) -> list[tuple[Path, Path, str]]:
    """Folder, feature set and key of unfinished work at `path`, or on the feature set there; refused where there is none."""
    inside = path.parent.name == STAGING
    staged = staged_in(path.parent.parent if inside else path.parent)
    targets = [(s.folder, s.feature_set, s.key) for s in staged if path == (s.folder if inside else s.feature_set)]
    if not targets:
        unfinished = ", ".join(str(s.folder) for s in staged) or "nothing"
        raise StoreError(f"nothing is unfinished of {path}; there is: {unfinished}")
    return targets
