"""Whether the file system of features/ supports what writing and reading feature sets needs: locks, renames, O_DIRECT."""

import os
import tempfile
from pathlib import Path

import psutil

from pipelines.doctor.finding import Finding
from pipelines.doctor.machine import Machine, existing

PREFIX = ".beyondcls-doctor-"
NETWORK = ("nfs", "lustre", "cifs", "smb", "9p", "beegfs", "gpfs", "ceph", "glusterfs", "fuse.")
LOCAL_LOCKS = ("localflock", "nolock", "local_lock=all", "local_lock=posix")  # options of mounts
BOTH = "beyondcls doctor --listen there, and beyondcls doctor --peer here, with the code that it shows"
LEASES = "no file locks: processes that share a set take turns by leases, and the unit of a dead one is free after a minute"
MOUNTING = "; on Lustre mount with -o flock, on NFS use version 4"
ELSEWHERE = "give an --out on a local disk or on a file system that can, and `ln -s` it to features/ if you like"


def check(machine: Machine) -> Finding:
    """Locks keep two writers apart, a rename puts the finished set in its place, O_DIRECT reads past the page cache.

    Whether locks hold between two machines, one of them cannot see: mount options only tell where they do not.
    """
    folder = existing(machine.features)
    kind, options = mount_of(folder)
    network = " (network)" if kind.startswith(NETWORK) else ""
    try:
        with tempfile.TemporaryDirectory(prefix=PREFIX, dir=folder) as scratch:
            locks, renames, direct = _locks(Path(scratch)), _renames(Path(scratch)), _direct(Path(scratch))
            without = locks == LEASES
    except OSError as error:
        observed = f"{folder} cannot be written to ({error.strerror}); reading feature sets works"
        return Finding("file system", "note", observed, "run in a folder of yours, or give --out")
    if (locks and not without) or renames:
        observed = f"{folder} is {kind}{network}: {'; '.join(filter(None, (locks, renames)))}"
        return Finding("file system", "problem", observed, ELSEWHERE + (MOUNTING if locks and network else ""))
    if without:
        observed = f"{folder} is {kind}{network}: {locks}"
        remedy = "nothing, if one process at a time writes; or " + ELSEWHERE + (MOUNTING if network else "")
        return Finding("file system", "note", observed, remedy)
    local_options = sorted(set(options.split(",")) & set(LOCAL_LOCKS))
    if network and local_options:
        observed = f"{folder} is {kind}{network}, mounted with {', '.join(local_options)}: locks hold on this machine only"
        remedy = "let one machine at a time write a feature set, or mount it without that option"
        return Finding("file system", "note", observed, remedy)
    if network:
        direct = f"; {direct}" if direct else ""
        observed = f"{folder} is {kind}{network}: locks and renames work here{direct}; one machine cannot show that locks hold "
        return Finding("file system", "note", observed + "between two", f"before several machines share an extraction: {BOTH}")
    if direct:
        observed = f"{folder} is {kind}{network}: locks and renames work; {direct}"
        remedy = "nothing, if the sets fit into memory; larger ones are read faster from a local disk"
        return Finding("file system", "note", observed, remedy)
    return Finding("file system", "ok", f"{folder} is {kind}{network}: locks, renames and O_DIRECT work")


def mount_of(folder: Path) -> tuple[str, str]:
    """The file system of a folder, and its mount options."""
    above = [p for p in psutil.disk_partitions(all=True) if folder.is_relative_to(p.mountpoint)]
    # Of two mounts at one place, the later hides the earlier.
    _, nearest = max(enumerate(above), key=lambda e: (len(e[1].mountpoint), e[0]), default=(0, None))
    return (nearest.fstype or "unknown", nearest.opts) if nearest else ("unknown", "")


def _locks(scratch: Path) -> str:
    """What is wrong with locks; empty if a second one is refused while a first is held."""
    from store.errors import StoreError
    from store.writing.lock import BusyError, Lock

    try:
        held = Lock(scratch / "lock", "it")
    except StoreError as error:
        return str(error)
    try:
        second = Lock(scratch / "lock", "it")
    except BusyError:
        return LEASES if held.is_leased else ""
    else:
        second.release()
        return "file locks keep nobody out"
    finally:
        held.release()


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
    from store.places.aligned import ALIGNMENT, aligned_memory

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
