"""`beyondcls store gc`: removing feature sets that nothing names any more."""

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer

from pipelines.sharing.places import FEATURES, PROJECT, RECEIPTS, Places
from pipelines.store.find import files_of_sets, is_feature_set, nbytes_of, staged_in
from pipelines.store.references import ProjectOption, Reference, md5_of, naming, references_in
from pipelines.store.remove import key_at, remove
from pipelines.store.table import size, table
from store import StoreError
from store.format.spec import key_in
from store.format.unfinished import is_of_writers, is_stub
from store.moving.transfer import AT_ONCE
from store.places import is_remote
from store.places.disk import content_of
from store.places.object_store import ObjectStore
from store.places.place import map_parallel
from store.writing.publishing import file_names, foreign

AT_ROOT = re.compile(r"(.+)-([0-9a-f]{32})", re.ASCII)
RECENT = timedelta(days=1)  # an upload whose last file came since may still go on: nobody can lock an object store
FOREIGN = "{} does not belong to a feature set; move it away first"


@dataclass(frozen=True)
class Leftover:
    """A feature set, or in an object store what was written of one.

    Attributes:
        name: of the set, without its key.
        key: in its name at a root.
        content: of its zarr.json; None if it has none.
        why_left: why it must not be removed even if nothing names it; empty if it may be.
        files: in an object store.
    """

    address: str
    name: str
    key: str | None
    content: bytes | None
    nbytes: int
    why_left: str
    files: tuple[str, ...] = ()

    @property
    def keys(self) -> set[str]:
        """In its zarr.json and its name."""
        return {key for key in (self.key, key_in(self.content or b"")) if key}

    @property
    def state(self) -> str:
        """In words; empty for a whole set."""
        incomplete = self.content is None and self.files
        return "not written completely" if incomplete else "" if key_in(self.content or b"") else "damaged"

    def remove(self) -> None:
        """Remove it; a StoreError if a process is writing it, or the service refuses."""
        if self.files:
            ObjectStore(self.address).remove(["zarr.json"])  # first, so that nobody finds half a set
            ObjectStore(self.address).remove([name for name in self.files if name != "zarr.json"])
        else:
            remove(Path(self.address), Path(self.address), key_at(Path(self.address)))


def _in_folder(folder: Path, at_root: bool) -> Iterator[Leftover]:
    """Feature sets directly in a folder, without stubs.

    Args:
        at_root: only ROOT/NAME-KEY counts; else any feature set.
    """
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        named = AT_ROOT.fullmatch(path.name) if at_root else None
        if path.name.startswith(".") or path.is_symlink() or not path.is_dir() or (at_root and not named):
            continue
        if not is_feature_set(path) or is_stub(path):
            continue
        content = content_of(path / "zarr.json")
        # Writers of an extension with another key count, too.
        writer = next((w for staged in staged_in(path.parent) if staged.feature_set == path and (w := staged.writer)), None)
        why_left = "" if content is not None else f"{path}/zarr.json is missing; remove it by hand"
        if writer or (other := next(foreign(path), None)) is not None:
            why_left = f"being written by {writer}" if writer else FOREIGN.format(other)
        name, key = named.groups() if named else (path.name, None)
        yield Leftover(str(path), name, key, content, nbytes_of(path), why_left)


def _in_object_store(root: str) -> Iterator[Leftover]:
    """What was written of the sets ROOT/NAME-KEY; a StoreError if it cannot be listed."""
    sizes = {name: files for name, files in files_of_sets(root).items() if AT_ROOT.fullmatch(name)}

    def look(set_name: str) -> Leftover:
        place, files, why_left = ObjectStore(f"{root}/{set_name}"), sizes[set_name], ""
        content = place.content("zarr.json") if "zarr.json" in files else None
        if others := [file for file in sorted(files) if not (is_of_writers(file) or file_names()[0].fullmatch(file))]:
            why_left = FOREIGN.format(place.address(others[0]))
        elif content is None:
            times = [written for written in place.times().values() if written is not None]
            if not times or datetime.now(UTC) - max(times) <= RECENT:
                why_left = "its last file came within a day, or nobody says when: it may still be being written"
        name, key = set_name.rsplit("-", 1)
        return Leftover(f"{root}/{set_name}", name, key, content, sum(files.values()), why_left, tuple(sorted(files)))

    yield from map_parallel(look, list(sizes), AT_ONCE)


def gc(
    folder: Annotated[Path, typer.Argument(help="folder of feature sets")] = Path("features"),
    params: Annotated[Path | None, typer.Option(help="parameter file with store.root  [default: your configuration's]")] = None,
    root: Annotated[
        str | None, typer.Option(help="root to look at instead: a folder, s3://…, or project for none", show_default=False)
    ] = None,
    project: ProjectOption = None,
    only_this_project: Annotated[
        bool, typer.Option("--only-this-project", help="say that no other project, nor clone of this one, has sets at the root")
    ] = False,
    delete: Annotated[bool, typer.Option("--delete", help="remove them; without, nothing is changed")] = False,
    show_all: Annotated[bool, typer.Option("--all", help="list those that are kept, too, and why")] = False,
) -> None:
    """List feature sets in a folder and at store.root that nothing names; --delete removes them.

    A set is kept if a lock file of DVC, a receipt or a stub in this folder, as it is now, names it, or one of --project. Lock
    files name digests; where no set at hand has the digest, every set of that name is kept.

    Other projects at the same root, other branches and other clones are not seen: name each with --project, or give
    --only-this-project if there are none; otherwise --delete refuses to touch what is outside of this project. Sets that are
    being written, and folders that hold other files, are left alone.
    """
    places = Places.from_params(params) if root is None else Places.from_section({"root": root})
    searched = {} if places.root is None else {_real(places.root): (places.root, True)}
    if not folder.is_dir() and not searched:
        raise StoreError(
            f"there is no folder {folder}, and no store.root; name one that holds feature sets, or give --params or --root"
        )
    roots = [Path(place) for place, _ in searched.values() if "://" not in place]
    searched.setdefault(_real(str(folder)), (str(folder), False))
    # Sets are listed before references, so that a set that is finished in between is not considered.
    listed: list[Leftover] = []
    for place, at_root in searched.values():
        listed += _in_object_store(place) if is_remote(place) else _in_folder(Path(place.removeprefix("file://")), at_root)
    ours = [Path.cwd(), *([Path(os.path.abspath(folder)).parent] if folder.is_dir() else [])]
    by_place = {path: references_in(path, roots) for path in (*ours, *(project or ()))}
    if (none := next((path for path in project or () if not by_place[path]), None)) is not None:
        raise StoreError(f"nothing in {none} refers to a feature set; name the folder of a project, with its receipts")
    references = [one for found in by_place.values() for one in found]
    typer.echo("note: other branches and clones are not looked at; name their lock files with --project", err=True)
    kept, unused = _decide(listed, references)
    _show(kept, unused, show_all)
    if not unused:
        return
    if not delete:
        typer.echo("nothing was removed; --delete does it")
        return
    if not references:
        raise StoreError(
            "nothing here refers to any feature set (no receipt, no stub, no lock file), so all of them would be removed, "
            "which is hardly intended; name the project that they belong to with --project, or remove one with "
            "`beyondcls store rm`"
        )
    outside = (one.address for one in unused if not _is_below(one.address, Path.cwd()))
    if not (project or only_this_project) and (address := next(outside, None)) is not None:
        raise StoreError(
            f"{address} is outside of this project ({Path.cwd()}), where others may have theirs; name their folders with "
            f"--project, or say --only-this-project if there are none. With --root {PROJECT} only {folder} is looked at"
        )
    _remove(unused)


def _decide(listed: Sequence[Leftover], references: Sequence[Reference]) -> tuple[dict[Leftover, str], list[Leftover]]:
    """What is kept, with the reason, and what nothing names."""
    of_md5: dict[str, list[str | None]] = {md5_of(one.content): [*one.keys] for one in listed if one.content is not None}
    keys = ((one, [one.key] if one.key else of_md5.get(one.md5 or "") or [None]) for one in references)
    known = [replace(one, key=key) for one, of_one in keys for key in of_one]
    doubts = {
        one.name: f"{one.source}: its key is not known here, so any set of the name {one.name} may be it"
        for one in reversed(known)
        if one.key is None
    }

    def why(one: Leftover) -> str:
        named = one.why_left or naming(one.address, one.keys, one.content, known)
        return named or next(filter(None, map(doubts.get, (one.name, FEATURES, RECEIPTS))), "")

    reasons = [(one, why(one)) for one in listed]
    return {one: reason for one, reason in reasons if reason}, [one for one, reason in reasons if not reason]


def _show(kept: dict[Leftover, str], unused: Sequence[Leftover], show_all: bool) -> None:
    rows = [[one.address, size(one.nbytes), one.state or "nothing refers to it"] for one in unused]
    if rows:
        typer.echo("\n".join(table([["unused", "bytes", ""], *rows], right=[1])))
    if kept and show_all:
        rows = [[one.address, size(one.nbytes), "; ".join(filter(None, (one.state, why)))] for one, why in kept.items()]
        typer.echo("\n".join(table([["kept", "bytes", "why"], *rows], right=[1])))
    else:
        for why in sorted({why for why in kept.values() if "is not known" in why}):
            typer.echo(f"kept in doubt: {why}")
    counts = (f"{name}: {len(of)} ({size(sum(one.nbytes for one in of))})" for name, of in (("unused", unused), ("kept", kept)))
    typer.echo("; ".join(counts) + ("" if show_all or not kept else "; --all lists them"))


def _remove(unused: Sequence[Leftover]) -> None:
    removed = []
    for one in unused:
        try:
            one.remove()
        except (StoreError, OSError) as error:
            typer.echo(f"left: {one.address}: {error}", err=True)
        else:
            removed.append(one.nbytes)
            typer.echo(f"removed {one.address}")
    typer.echo(f"freed {size(sum(removed))}")
    if len(removed) < len(unused):
        raise typer.Exit(1)


def _real(address: str) -> str:
    return address if "://" in address else os.path.realpath(address)


def _is_below(place: str, folder: Path) -> bool:
    return "://" not in place and Path(_real(place)).is_relative_to(os.path.realpath(folder))
