"""`beyondcls store rm | gc`: removing a feature set, or the unfinished part of one; or all sets that nothing names any more."""

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer

from pipelines.sharing.places import FEATURES, Places
from pipelines.store.find import AT_ROOT, REMOVED, StoredSet, is_feature_set, nbytes_of, owner_of, staged_in
from pipelines.store.named import ProjectOption, named_in, naming
from pipelines.store.table import size, table
from store import StoreError
from store.format.spec import key_in
from store.format.unfinished import is_of_writers, is_stub
from store.places import is_remote
from store.places.disk import content_of, make_folder
from store.places.object_store import ObjectStore
from store.writing.publishing import STAGING, discard, file_names, foreign


def rm(
    path: Annotated[Path, typer.Argument(help="folder of a feature set, or of unfinished work in .staging, as `ls` lists it")],
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
    if not path.is_dir():
        raise StoreError(f"there is no folder {path}; `beyondcls store ls` lists the feature sets")
    staged = [one for one in staged_in(path.parent.parent) if path == one.folder]
    if not staged and not (is_feature_set(path) and (path / "zarr.json").is_file()):
        raise StoreError(f"{path} is not a feature set (its zarr.json does not say so); only feature sets are removed")
    check_removable(path, feature_set := staged[0].feature_set if staged else path)
    content = content_of(path / "zarr.json")
    named = {} if force or staged else named_in([Path(), *(project or ())], only_locks=True)
    if lock := naming(str(path), content, named):
        raise StoreError(f"{lock} names {path}, so it stays; --force removes it, and its stage of DVC makes it again")
    if not yes:
        question = f"{path} ({size(nbytes_of(path))}, made by {owner_of(str(path))})"
        if not sys.stdin.isatty():
            raise StoreError(f"nobody can be asked here whether to remove {question}; give --yes if that is meant")
        if not typer.confirm(f"remove {question}?"):
            typer.echo("nothing was removed")
            raise typer.Exit(1)
    remove(path, feature_set, content)


def remove(folder: Path, feature_set: Path, content: bytes | None) -> None:
    """Remove a feature set, or the unfinished part of the one at `feature_set`, and say who made it.

    Args:
        content: of the zarr.json that it had when its removal was decided; None without one.

    Raises:
        StoreError: a process is writing it; others have put files there; or it is another set by now.
    """
    check_removable(folder, feature_set)
    owner, place = owner_of(str(folder)), feature_set.parent / STAGING
    removed = place / f"{REMOVED}{feature_set.name}-{key_in(content or b'') or '0' * 32}"
    removed = folder if folder.name.startswith(REMOVED) else removed
    if folder != removed:
        discard(removed)  # of an earlier removal that was killed
        make_folder(place)
        os.rename(folder, removed)  # atomically: from here on, no half set has its name
        try:
            check_removable(removed, feature_set, folder)
            if content_of(removed / "zarr.json") != content:
                raise StoreError(f"{folder} is another feature set than a moment ago, and stays; give the command again")
        except StoreError:
            os.rename(removed, folder)
            raise
    discard(removed)
    with suppress(OSError):  # not empty: something else is staged there
        place.rmdir()
    typer.echo(f"removed {folder}, made by {owner}")


def check_removable(folder: Path, feature_set: Path, named: Path | None = None) -> None:
    """Refuse to remove a folder, which was `named` so, that is being written, or also holds files of others."""
    for staged in staged_in(feature_set.parent):
        if staged.feature_set == feature_set and (writer := staged.writer):  # of an extension with another key, too
            raise StoreError(
                f"{feature_set} is being written by {writer}; wait until it has finished, or stop it, and try again"
            )
    if (other := next(foreign(folder), None)) is not None:
        other = (named or folder) / other.relative_to(folder)
        raise StoreError(f"{other} does not belong to a feature set; move it away first, then remove {named or folder}")


def gc(
    place: Annotated[str | None, typer.Argument(help="folder of sets, or s3://…  [default: features and store.root]")] = None,
    params: Annotated[Path | None, typer.Option(help="parameter file with store.root  [default: your configuration's]")] = None,
    project: ProjectOption = None,
    unused_for: Annotated[int, typer.Option(min=0, metavar="DAYS", help="keep what was used within as many days")] = 30,
    delete: Annotated[bool, typer.Option("--delete", help="remove them; without, nothing is changed")] = False,
) -> None:
    """List the feature sets of features/ and store.root, and why each is kept; --delete removes those that nothing names.

    A set is kept if it was used of late, or if dvc.lock, a receipt or a stub of the project in this folder names it, as it is
    now, or of one of --project. Other projects at the same root, other branches and other clones are not seen: --delete
    touches what is outside of this folder only if --project names them (or `--project .`, if there are none). Sets that are
    being written, and folders that hold other files, are left alone.
    """
    here = Path.cwd()
    asked = [place.removeprefix("file://")] if place else [Places.from_params(params).root, FEATURES]
    chosen = [one for one in asked if one and (is_remote(one) or Path(one).is_dir())]
    if not chosen:
        raise StoreError(f"there is no folder {place or FEATURES}; name one of feature sets, or store.root in --params")
    # Sets are listed before what names them, so that a set that is finished in between is not considered.
    listed = [one for root in {_resolve_address(root): root for root in reversed(chosen)}.values() for one in _sets_in(root)]
    if empty := [one for one in project or () if one.resolve() != here and not named_in([one])]:
        raise StoreError(f"nothing in {empty[0]} names a feature set; name the folder of a project, with its receipts")
    beside = [Path(os.path.abspath(root)).parent for root in chosen if _is_below(root, here)]
    named = named_in([here, *beside, *(project or ())])
    why = {one: _why_kept(one, named, unused_for) for one in listed}
    unused = [one for one, reason in why.items() if not reason]
    _print_table(why)
    if not delete or not unused:
        typer.echo("nothing was removed" + ("; --delete does it" if unused else ""))
        return
    if not named:
        raise StoreError(
            "nothing here names any feature set (no dvc.lock, no receipt, no stub), so all of them would be removed, which is "
            "hardly intended; name the project that they belong to with --project, or remove one with `beyondcls store rm`"
        )
    outside = next((one.address for one in unused if not _is_below(_resolve_address(one.address), here)), None)
    if outside is not None and not project:
        raise StoreError(
            f"{outside} is outside of this project ({here}), where others may have theirs; name each with --project, or give "
            f"--project . if there are none. `beyondcls store gc {FEATURES}` looks at that folder alone"
        )
    _remove(unused)


def _sets_in(place: str) -> list[StoredSet]:
    """Feature sets directly in a folder or an object store, without stubs; outside of the working folder only ROOT/NAME-KEY."""
    if is_remote(place):
        return [one for one in StoredSet.at_root(place.rstrip("/")) if AT_ROOT.fullmatch(one.address.rpartition("/")[2])]
    own = _is_below(place, Path.cwd())
    paths = [p for p in sorted(Path(place).iterdir()) if p.is_dir() and not p.is_symlink()]
    named = [path for path in paths if AT_ROOT.fullmatch(path.name) or (own and not path.name.startswith("."))]
    return [StoredSet.in_folder(path) for path in named if is_feature_set(path) and not is_stub(path)]


def _why_kept(one: StoredSet, named: Mapping[str, str], days: int) -> str:
    """Why a set must stay; empty if it may go."""
    if one.files:
        others = (file for file in one.files if not (is_of_writers(file) or file_names()[0].fullmatch(file)))
        if (other := next(others, None)) is not None:
            return f"{one.address}/{other} does not belong to a feature set; move it away first"
        days = days if one.content is not None else max(days, 1)  # nobody can lock an object store: it may be being written
    else:
        try:
            check_removable(Path(one.address), Path(one.address))
        except StoreError as error:
            return str(error)
        if one.content is None:
            return "it has no zarr.json; remove it by hand"
    if file := naming(one.address, one.content, named):
        return file
    if days and (one.used is None or one.used > datetime.now(UTC) - timedelta(days)):
        return f"used within {days} days" if one.used else "nobody says when it was used"
    return ""


def _print_table(why: Mapping[StoredSet, str]) -> None:
    rows = [["feature set", "bytes", "used", "made by", "kept"]]
    for one, reason in sorted(why.items(), key=lambda item: (bool(item[1]), item[0].address)):
        rows.append([one.address, size(one.nbytes), one.day, owner_of(one.address), reason or "no: nothing names it"])
    typer.echo("\n".join(table(rows, right=[1])))
    kept, unused = (sum(one.nbytes for one, reason in why.items() if bool(reason) is is_kept) for is_kept in (True, False))
    n_kept = sum(map(bool, why.values()))
    typer.echo(f"unused: {len(why) - n_kept} ({size(unused)}); kept: {n_kept} ({size(kept)})")


def _remove(unused: list[StoredSet]) -> None:
    removed = []
    for one in unused:
        try:
            if one.files:
                place = ObjectStore(one.address)
                if place.content_now("zarr.json") != one.content:
                    raise StoreError("it is another set than a moment ago, and stays")
                place.remove(["zarr.json"])  # first, so that nobody finds half a set
                place.remove([name for name in one.files if name != "zarr.json"])
                typer.echo(f"removed {one.address}")
            else:
                remove(Path(one.address), Path(one.address), one.content)
        except (StoreError, OSError) as error:
            typer.echo(f"left: {one.address}: {error}", err=True)
        else:
            removed.append(one.nbytes)
    typer.echo(f"freed {size(sum(removed))}")
    if len(removed) < len(unused):
        raise typer.Exit(1)


def _resolve_address(address: str) -> str:
    return address if is_remote(address) else os.path.realpath(address)


def _is_below(place: str, folder: Path) -> bool:
    return not is_remote(place) and Path(os.path.abspath(place)).is_relative_to(folder)
