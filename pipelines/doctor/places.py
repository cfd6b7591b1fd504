"""Checks of where feature sets go: disks, and whether sets can be published there without replacing anything."""

import shutil
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil

from pipelines.doctor.machine import Finding, Machine, State
from store.errors import StoreError
from store.places import is_remote
from store.places.disk import existing_folder

FULL_BYTES, FULL_SHARE = 1e9, 0.05
PREFIX = ".beyondcls-doctor-"
NETWORK = ("nfs", "lustre", "cifs", "smb", "9p", "beegfs", "gpfs", "ceph", "glusterfs", "fuse.")


def disk(machine: Machine) -> Iterator[Finding]:
    """Each folder that is written to. Less than 1 GB is a problem; less than 5 % of it, or than is to go there, a note."""
    from pipelines.store.find import feature_sets, nbytes_of
    from pipelines.store.table import size

    features, places = machine.folder / "features", machine.places
    folders = {"features": (features, sum(map(nbytes_of, feature_sets(features))))}
    if places.root is not None and not is_remote(places.root):
        folders["store.root"] = machine.folder / places.root, 0
    if places.root is not None and places.cache is not None:
        folders["store.cache"] = places.cache[0], places.cache[1] - nbytes_of(places.cache[0])
    for purpose, (path, nbytes) in folders.items():
        usage = shutil.disk_usage(folder := existing_folder(path.resolve()))
        expected = max(FULL_BYTES, FULL_SHARE * usage.total, nbytes)
        state: State = "ok" if usage.free >= expected else "note" if usage.free >= FULL_BYTES else "problem"
        found = f"{purpose}: {size(usage.free)} free on the disk of {folder}, expected {size(expected)}"
        remedy = "`beyondcls store ls` shows what takes room, `store rm` and `dvc gc -w` free it; --dtype int8 takes half"
        yield Finding("disk", state, found, remedy)


def file_system(machine: Machine) -> Iterator[Finding]:
    """That of features/."""
    yield _check_publishing("file system", machine.folder / "features", "")


def store_root(machine: Machine) -> Iterator[Finding]:
    """The folder or bucket that machines and projects share, and which file names it."""
    root, source = machine.places.root, f" (from {machine.places.source})"
    if root is not None and is_remote(root):
        is_offline = Finding("store.root", "note", f"{root}{source} was not looked at", "leave out --offline")
        yield is_offline if machine.offline else _check_conditional_writes(root, source)
    elif root is not None and (folder := machine.folder / root).exists():
        yield _check_publishing("store.root", folder, source)
    elif root is not None:
        remedy = "mount it, if it is another machine's; else the first extraction makes it"
        yield Finding("store.root", "note", f"there is no {machine.folder / root}{source}", remedy)


def _check_publishing(name: str, folder: Path, source: str) -> Finding:
    """Whether a file's name is given once, which keeps two writers apart, and folders can be renamed, which publishes a set."""
    from store.places.disk import exchange, place_file

    folder = existing_folder(folder.resolve())
    mounts = [p for p in reversed(psutil.disk_partitions(all=True)) if folder.is_relative_to(p.mountpoint)]
    kind = max(mounts, key=lambda p: len(p.mountpoint)).fstype  # of two at one place the later, which hides the other
    found, is_written = f"{folder}{source} is {kind}{' (network)' if kind.startswith(NETWORK) else ''}", False
    try:
        with tempfile.TemporaryDirectory(prefix=PREFIX, dir=folder) as scratch:
            first, second, named, one, other = (Path(scratch) / n for n in ("first", "second", "named", "one", "other"))
            for file in (first, second, one / "name", other / "name"):
                file.parent.mkdir(exist_ok=True)
                file.write_text(str(file))
            is_written = True
            if [place_file(first, named), place_file(second, named)] != [True, False] or named.read_text() != str(first):
                raise OSError(0, "a file replaces another of its name")
            exchange(one, other)
            if (other / "name").read_text() != str(one / "name"):
                raise OSError(0, "a renamed folder keeps what it held")
    except OSError as error:
        remedy = "give an --out on another file system, or for one of somebody else's ask for access"
        wrong = (
            "tasks could overwrite each other's files, or sets not be published" if is_written else "it cannot be written to"
        )
        return Finding(name, "problem" if is_written else "note", f"{found}: {wrong} ({error.strerror})", remedy)
    return Finding(name, "ok", f"{found}: names are given once, and renames work")


def _check_conditional_writes(root: str, source: str) -> Finding:
    """Whether an object store can be listed, and refuses to write what is there: a file is written twice, and removed."""
    from store.places.object_store import ObjectStore, honours_condition

    place = ObjectStore(root)
    found = f"{root}{source} can be listed (entries: {len(place.names()):,})"
    try:
        if place.can_create and honours_condition(place, f"{PREFIX}{uuid.uuid4().hex}"):
            return Finding("store.root", "ok", f"{found} and refuses to write what is there: tasks can write straight to it")
    except StoreError as error:
        remedy = "see that the bucket is there; probing may work, to extract ask its owner for access"
        return Finding("store.root", "note", str(error), remedy)
    remedy = "sets are written to features/.upload first, and sent from there; several tasks need that folder in common"
    return Finding("store.root", "note", f"{found}, but ignores the condition of a write (If-None-Match: *)", remedy)
