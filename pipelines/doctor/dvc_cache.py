"""How DVC puts files from its cache into the workspace: by links, or by copies that take the space twice."""

import errno
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from pipelines.doctor.file_system import PREFIX
from pipelines.doctor.finding import Finding
from pipelines.doctor.machine import Machine, existing

DEFAULT = "reflink,copy"  # of DVC, without a setting
REMEDY = "dvc config cache.type hardlink,symlink,copy && dvc checkout --relink"
_FICLONE = 0x40049409  # Linux: share a file's blocks


def check(machine: Machine) -> Finding | None:
    """The first kind in cache.type that works between both places, tried on a temporary file."""
    project = machine.project
    if project is None:
        return None
    # DVC shows a value that was written without quotes as a list.
    order = [kind.strip(" []'\"") for kind in project.settings.get("cache.type", DEFAULT).split(",")]
    cache, features = existing(project.cache), existing(machine.features)
    crosses = cache.stat().st_dev != features.stat().st_dev
    crossing = f"; the cache, {project.cache}, is on another file system than features/" if crosses else ""
    try:
        with (
            tempfile.TemporaryDirectory(prefix=PREFIX, dir=cache) as in_cache,
            tempfile.TemporaryDirectory(prefix=PREFIX, dir=features) as in_features,
        ):
            source = Path(in_cache) / "file"
            source.write_bytes(b"content")
            failed = {}
            for kind in order:
                if kind not in KINDS:
                    known = ", ".join(KINDS)
                    return Finding("dvc cache", "problem", f"cache.type is {','.join(order)}, known: {known}", REMEDY)
                if not (why := _tried(kind, source, Path(in_features) / kind)):
                    break
                failed[kind] = why
            else:
                tried = "; ".join(f"{kind}: {why}" for kind, why in failed.items())
                return Finding("dvc cache", "problem", f"nothing in cache.type works ({tried}){crossing}", REMEDY)
    except OSError as error:
        observed = f"{error.filename or cache} cannot be written to ({error.strerror})"
        return Finding("dvc cache", "note", observed, "`dvc repro` and `dvc pull` need it: run them as its owner")
    observed = f"cache.type {','.join(order)}; {kind} works"
    observed += "".join(f", {failing} does not ({why})" for failing, why in failed.items()) + crossing
    if kind != "copy":
        return Finding("dvc cache", "ok", observed)
    if crosses:
        remedy = "dvc cache dir FOLDER, on the file system of the project; or put symlink before copy in cache.type"
    else:
        remedy = REMEDY
    return Finding("dvc cache", "note", f"{observed}: features take their room twice", remedy)


def _tried(kind: str, source: Path, target: Path) -> str:
    """Why a kind of link does not work; empty if it does."""
    try:
        KINDS[kind](source, target)
        return "" if target.read_bytes() == source.read_bytes() else "another content"
    except OSError as error:
        return {errno.EXDEV: "other file system"}.get(error.errno or 0, error.strerror or str(error))


def _reflink(source: Path, target: Path) -> None:
    import fcntl

    with source.open("rb") as original, target.open("wb") as clone:
        fcntl.ioctl(clone, _FICLONE, original.fileno())


KINDS: dict[str, Callable[[Path, Path], object]] = {
    "reflink": _reflink,
    "hardlink": os.link,
    "symlink": os.symlink,
    "copy": shutil.copyfile,
}
