"""Whether the file system of features/ supports what writing and reading feature sets needs."""

import os
import tempfile
from pathlib import Path

import psutil

from pipelines.doctor.finding import Finding
from pipelines.doctor.machine import Machine, existing

PREFIX = ".beyondcls-doctor-"
NETWORK = ("nfs", "lustre", "cifs", "smb", "9p", "beegfs", "gpfs", "ceph", "glusterfs", "fuse.")
ELSEWHERE = "give an --out on a local disk or on a file system that can, and `ln -s` it to features/ if you like"


def check(machine: Machine) -> Finding:
    """A file that is named where there is none keeps two writers apart, a rename puts the finished set in its place.

    No lock decides anything, so machines may share an extraction wherever this holds. O_DIRECT reads past the page cache.
    """
    folder = existing(machine.features)
    kind = kind_of(folder)
    network = " (network)" if kind.startswith(NETWORK) else ""
    try:
        with tempfile.TemporaryDirectory(prefix=PREFIX, dir=folder) as scratch:
            names, renames, direct = _names(Path(scratch)), _renames(Path(scratch)), _direct(Path(scratch))
    except OSError as error:
        observed = f"{folder} cannot be written to ({error.strerror}); reading feature sets works"
        return Finding("file system", "note", observed, "run in a folder of yours, or give --out")
    if names or renames:
        observed = f"{folder} is {kind}{network}: {'; '.join(filter(None, (names, renames)))}"
        return Finding("file system", "problem", observed, ELSEWHERE)
    if direct:
        observed = f"{folder} is {kind}{network}: files are named once, and renames work; {direct}"
        remedy = "nothing, if the sets fit into memory; larger ones are read faster from a local disk"
        return Finding("file system", "note", observed, remedy)
    return Finding("file system", "ok", f"{folder} is {kind}{network}: files are named once, renames and O_DIRECT work")


def kind_of(folder: Path) -> str:
    """The file system of a folder."""
    above = [p for p in psutil.disk_partitions(all=True) if folder.is_relative_to(p.mountpoint)]
    # Of two mounts at one place, the later hides the earlier.
    _, nearest = max(enumerate(above), key=lambda e: (len(e[1].mountpoint), e[0]), default=(0, None))
    return (nearest.fstype if nearest else "") or "unknown"


def _names(scratch: Path) -> str:
    """What is wrong with naming files; empty if a second file does not get the name of a first, which stays as it is."""
    from store.places.disk import place_file

    files = [scratch / name for name in ("first", "second")]
    for file in files:
        file.write_text(file.name)
    if [place_file(file, scratch / "named") for file in files] == [True, False] and (scratch / "named").read_text() == "first":
        return ""
    return "a file replaces another of its name, so tasks could overwrite each other's files"


def _renames(scratch: Path) -> str:
    """What is wrong with renaming folders, which puts a finished set in the place of an old one; empty if it works."""
    from store.places.disk import exchange

    first, second = scratch / "one", scratch / "other"
    for folder in (first, second):
        folder.mkdir()
        (folder / "name").write_text(folder.name)
    try:
        exchange(first, second)
    except OSError as error:
        return f"folders cannot be renamed ({error.strerror})"
    return "" if (second / "name").read_text() == "one" else "renamed folders keep what they held"


def _direct(scratch: Path) -> str:
    """What is wrong with O_DIRECT; empty if it works."""
    from store.places.place import ALIGNMENT, aligned_memory

    file = scratch / "direct"
    file.write_bytes(bytes(ALIGNMENT))
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_DIRECT)
    except (OSError, AttributeError):
        return "no O_DIRECT, so everything goes through the page cache"
    try:
        n = os.preadv(descriptor, [aligned_memory(ALIGNMENT)], 0)
    except OSError as error:
        return f"O_DIRECT cannot be read with ({error.strerror})"
    finally:
        os.close(descriptor)
    return "" if n == ALIGNMENT else "O_DIRECT reads too little"
