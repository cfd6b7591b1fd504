"""`beyondcls store rm`: removing a feature set, or what is unfinished of one, and nothing else."""

import json
import os
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated

import typer


def rm(
    path: Annotated[Path, typer.Argument(help="folder of a feature set")],
    staging: Annotated[
        bool, typer.Option("--staging", help="remove what is unfinished of it under .staging instead; or PATH is one of these")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="do not ask")] = False,
) -> None:
    """Remove a feature set, after asking. Folders that are none, or that hold other files too, are left alone."""
    from pipelines.store.find import nbytes_of
    from pipelines.store.table import size
    from store import StoreError

    if path.is_symlink():
        raise StoreError(f"{path} is a link to {os.readlink(path)}; name the folder itself")
    # "." and ".." have no name that the lock and the staged parts could be found by.
    path = Path(os.path.abspath(path)) if path.name in ("", "..") else path
    targets = _staged(path) if staging else [(path, path, key_at(path))]
    for folder, _, _ in targets:
        if (other := foreign(folder)) is not None:
            raise StoreError(f"{other} does not belong to a feature set; move it away first, then remove {folder}")
    shown = ", ".join(f"{folder} ({size(nbytes_of(folder))})" for folder, _, _ in targets)
    if not yes:
        if not sys.stdin.isatty():
            raise StoreError(f"nobody can be asked here whether to remove {shown}; give --yes if that is meant")
        if not typer.confirm(f"remove {shown}?"):
            typer.echo("nothing was removed")
            raise typer.Exit(1)
    for folder, of, key in targets:
        remove(folder, of, key)
        typer.echo(f"removed {folder}")


def remove(folder: Path, of: Path, key: str) -> None:
    """Remove a feature set, or what is unfinished of the one at `of`.

    Raises:
        StoreError: somebody writes it.
    """
    from pipelines.store.find import REMOVED

    with _nobody_writes(of, key) as place:
        gone = place / f"{REMOVED}{of.name}-{key}"
        if folder != gone:
            shutil.rmtree(gone, ignore_errors=True)  # of an earlier removal that was killed
            os.rename(folder, gone)  # at one stroke: whatever happens from here on, no half set has its name
        shutil.rmtree(gone)


def remove_objects(address: str, files: Sequence[str]) -> None:
    """Remove files of a feature set in an object store, zarr.json first: whoever looks then finds no set.

    Raises:
        StoreError: the service does not do it.
    """
    import fsspec  # type: ignore[import-untyped]

    from store import StoreError

    try:
        fs, path = fsspec.core.url_to_fs(address)
        for names in (["zarr.json"] if "zarr.json" in files else [], [name for name in files if name != "zarr.json"]):
            if names:
                fs.rm([f"{path}/{name}" for name in names])
    except Exception as error:  # each service has its own errors
        raise StoreError(
            f"{address} cannot be removed: {error}; check the network and your right to, and give the command again"
        ) from error


def key_at(path: Path) -> str:
    """The key of a feature set, zeros if it is too damaged to tell.

    Raises:
        StoreError: it is none.
    """
    from pipelines.store.find import is_feature_set
    from store import StoreError

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
    """Folder, feature set and key of what is unfinished at or of `path`.

    Raises:
        StoreError: there is nothing.
    """
    from pipelines.store.find import STAGING, staged_in
    from store import StoreError

    inside = path.parent.name == STAGING
    staged = staged_in(path.parent.parent if inside else path.parent)
    found = [(s.folder, s.of, s.folder.name[-32:]) for s in staged if path == (s.folder if inside else s.of)]
    if not found:
        known = ", ".join(str(s.folder) for s in staged) or "nothing"
        raise StoreError(f"nothing is unfinished of {path}; there is: {known}")
    return found


def foreign(folder: Path) -> Path | None:
    """The first thing below a folder that neither a feature set nor its writer has."""
    file, below = file_names()
    for where, folders, names in os.walk(folder):
        for name in sorted(names):
            path = Path(where, name)
            if not file.fullmatch(path.relative_to(folder).as_posix()):
                return path
        for name in sorted(folders):
            path = Path(where, name)
            if path.is_symlink() or not below.fullmatch(path.relative_to(folder).as_posix()):
                return path
    return None


def file_names() -> tuple[re.Pattern[str], re.Pattern[str]]:
    """What files and folders of a feature set or its writer are called, by their path inside it."""
    from store.format.layout import KINDS

    group = rf"(?:{'|'.join(KINDS)})(?:/[\w-]{{1,100}})*"
    file = re.compile(rf"(?:journal|zarr\.json|{group}/zarr\.json|{group}/c/\d+(?:/0)*)(?:\.partial)?", re.ASCII)
    return file, re.compile(group, re.ASCII)  # chunk folders fit it too


@contextmanager
def _nobody_writes(of: Path, key: str) -> Iterator[Path]:
    """Holds the lock of a feature set and gives the folder where its writers work.

    Raises:
        StoreError: somebody writes it, be it an extension that has another key.
    """
    from pipelines.store.find import STAGING
    from store import StoreError
    from store.writing.lock import Lock, holder

    place = of.parent / STAGING
    for other in sorted(place.glob("*.lock")):
        if re.fullmatch(re.escape(of.name) + r"-[0-9a-f]{32}\.lock", other.name) and (who := holder(other)):
            raise StoreError(f"{of} is being written by {who}; wait until it has finished, or stop it and remove {of} then")
    lock = Lock(place / f"{of.name}-{key}.lock", str(of))
    try:
        yield place
    finally:
        lock.release()
        with suppress(OSError):  # not empty: something else is staged there
            place.rmdir()
